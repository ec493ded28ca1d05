"""The data of a federation: clients, server and test data."""

import math
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import (
    count_shared,
    key_id,
    keyed_fingerprint,
    machine_key,
    record_digests,
)
from fedaux_pl.data.input_checks import check_finite, check_pixels, check_same_kind
from fedaux_pl.data.source import Examples, Source, check_source
from fedaux_pl.errors import DataError
from fedaux_pl.functional import derive_seed, dirichlet_partition

# The purposes of the seed. They are part of every derived seed: never renumber them.
_PARTITION, _AUXILIARY_SPLIT, _CLIENT_BATCHES, _DISTILL_BATCHES, PRETRAIN_BATCHES = range(5)


class FederatedDataModule(pl.LightningDataModule):
    """The data of a federation: D_1 ... D_n, D^- and D_distill, and the test data.

    The private training data is split over the clients (appendix B of the paper). The auxiliary
    data is split at random into the negatives D^- and the distillation data D_distill, which are
    disjoint. All data stays in memory, on the device of the Trainer.

    Args:
        private: The labeled data of the clients, and the test data.
        auxiliary: The public data, whose labels are not used; None for methods without any.
        num_clients: n, the number of clients.
        alpha: The concentration of the Dirichlet distribution. With 0.01 a client holds little
            more than one class; with 100 its classes are nearly balanced.
        negatives: The share of the auxiliary data that becomes D^-; the rest is D_distill.
        seed: The seed of the split over clients, the split of the auxiliary data and the order of
            all batches.

    Example:
        >>> from fedaux_pl.data import Digits, FederatedDataModule
        >>> data = FederatedDataModule(Digits(), auxiliary=Digits(), num_clients=4, alpha=100)
        >>> data.setup()
        >>> data.client_sizes
        [225, 226, 225, 225]
        >>> len(data.negative_inputs), len(data.distill_inputs), len(data.test_examples)
        (120, 478, 298)
        >>> inputs, labels = next(iter(data.client_batches(0, batch_size=32)))
        >>> inputs.shape
        torch.Size([32, 1, 8, 8])
    """

    def __init__(
        self,
        private: Source,
        auxiliary: Source | None = None,
        num_clients: int = 20,
        alpha: float = 0.01,
        negatives: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, but is {num_clients}")
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, but is {alpha}")
        if not 0 < negatives < 1:
            raise ValueError(f"negatives must lie strictly between 0 and 1, but is {negatives}")
        check_source("private", private)
        if auxiliary is not None:
            check_source("auxiliary", auxiliary)
        self.private = private
        self.auxiliary = auxiliary
        self.num_clients = num_clients
        self.alpha = alpha
        self.negatives = negatives
        self.seed = seed
        self._shared_rows = 0
        self._clients: list[Tensor] | None = None

    def prepare_data(self) -> None:
        """Loads the data in one process per node first, so that the others find it cached."""
        if self._clients is None:
            self._load()

    def setup(self, stage: str | None = None) -> None:
        """Loads and splits the data, once, and moves it to the Trainer's device."""
        if self._clients is None:
            self._load()
        if self.trainer is not None:
            self.to(self.trainer.strategy.root_device)

    def _load(self) -> None:
        train, test = self.private.train(), self.private.test()
        for part, examples in (("training", train), ("test", test)):
            if examples.labels is None:
                raise DataError(
                    f"{type(self.private).__name__} has no labels for its {part} data: the private "
                    "data must be labeled"
                )
        check_same_kind(train.inputs, test.inputs, "private training and test data")
        if len(torch.unique(train.targets)) < 2:
            raise DataError(
                f"the private training data must have at least 2 classes, but all {len(train)} "
                f"samples are of class {train.classes[int(train.targets[0])]!r}: check the labels"
            )
        self._train, self._test = train, test
        key = machine_key()
        self.fingerprints = {
            "private": keyed_fingerprint(key, train.inputs, train.targets),
            "test": keyed_fingerprint(key, test.inputs, test.targets),
        }
        if self.auxiliary is not None:
            inputs = self.auxiliary.auxiliary()
            check_same_kind(train.inputs, inputs, "private and auxiliary data")
            check_finite(inputs)
            count = round(len(inputs) * self.negatives)
            if not 0 < count < len(inputs):
                raise DataError(
                    f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at negatives = "
                    f"{self.negatives}: use more auxiliary data, or change negatives"
                )
            generator = torch.Generator().manual_seed(derive_seed(self.seed, _AUXILIARY_SPLIT))
            order = torch.randperm(len(inputs), generator=generator)
            self._auxiliary = inputs
            self._negatives = inputs[order[:count].sort().values]
            self._distill = inputs[order[count:].sort().values]
            # plain: the auxiliary data is public
            self.fingerprints["auxiliary"] = tensor_digest(inputs)
            self._shared_rows = count_shared(train.inputs, inputs, key)
            if self._shared_rows:
                rank_zero_warn(
                    f"{self._shared_rows} of {len(inputs)} auxiliary samples are also private "
                    "training samples: h_0 and the scores then depend on private data beyond what "
                    "the privacy guarantee covers; use other auxiliary data, or remove the samples"
                )
        self._clients = dirichlet_partition(
            train.targets, self.num_clients, self.alpha, derive_seed(self.seed, _PARTITION)
        )

    def to(self, device: torch.device | str) -> "FederatedDataModule":
        """Moves all data to a device, as ``setup`` does under a Trainer."""
        self._loaded()
        self._train, self._test = self._train.to(device), self._test.to(device)
        if self.auxiliary is not None:
            self._auxiliary = self._auxiliary.to(device)
            self._negatives = self._negatives.to(device)
            self._distill = self._distill.to(device)
        return self

    def _loaded(self) -> list[Tensor]:
        if self._clients is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._clients

    def settings(self) -> dict[str, Any]:
        """All settings that determine the data of each client, as plain values."""
        self._loaded()
        return {
            "private": type(self.private).__name__,
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "num_clients": self.num_clients,
            "alpha": self.alpha,
            "negatives": self.negatives,
            "seed": self.seed,
            "contents": dict(self.fingerprints),
        }

    def release_settings(self) -> dict[str, Any]:
        """The settings that determine what clients release: all but those of the test data."""
        settings = self.settings()
        del settings["contents"]["test"]
        return settings

    @property
    def key_id(self) -> str:
        """The public name of the key of ``record_digests``."""
        return key_id(machine_key())

    def record_digests(self, client: int) -> NDArray[np.uint64]:
        """A keyed hash of each record (input and label) of D_i, which only this machine can make.

        Args:
            client: i, from 0.

        Returns:
            Shape (|D_i|,).
        """
        own = self.client(client)
        return record_digests(own.inputs, own.targets, machine_key())

    @property
    def shared_rows(self) -> int:
        """The number of auxiliary samples that are also private training samples."""
        self._loaded()
        return self._shared_rows

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        self._loaded()
        return self._train.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) for images, (L,) for texts."""
        self._loaded()
        return tuple(self._train.inputs.shape[1:])

    @property
    def input_format(self) -> dict[str, str | int]:
        """See :attr:`Source.input_format`."""
        return self.private.input_format

    @property
    def all_inputs(self) -> list[Tensor]:
        """The inputs of the training data, the test data and, if given, the auxiliary data."""
        self._loaded()
        inputs = [self._train.inputs, self._test.inputs]
        return inputs if self.auxiliary is None else [*inputs, self._auxiliary]

    def check_model(self, model: nn.Module) -> None:
        """Raises a ValueError or a DataError if the model cannot read, or misreads, the inputs."""
        for inputs in self.all_inputs:
            model.check_inputs(inputs)  # type: ignore[operator]
        for source in (self.private, self.auxiliary):
            if source is not None:
                source.check_model(model)

    @property
    def client_indices(self) -> list[Tensor]:
        """For each client the positions of its samples in the private training data."""
        return self._loaded()

    @property
    def client_sizes(self) -> list[int]:
        """|D_i| of each client."""
        return [len(indices) for indices in self._loaded()]

    def client(self, index: int) -> Examples:
        """D_i, a copy of the private data of one client."""
        where = self._positions(index).to(self._train.inputs.device)
        return Examples(self._train.inputs[where], self._train.targets[where], self._train.classes)

    def client_targets(self, index: int) -> Tensor:
        """The labels of D_i, without a copy of its inputs."""
        return self._train.targets[self._positions(index).to(self._train.targets.device)]

    def _positions(self, index: int) -> Tensor:
        clients = self._loaded()
        if not 0 <= index < len(clients):
            raise IndexError(f"clients are numbered 0 ... {len(clients) - 1}, but got {index}")
        return clients[index]

    @property
    def auxiliary_inputs(self) -> Tensor:
        """D_aux."""
        self._check_auxiliary()
        return self._auxiliary

    @property
    def negative_inputs(self) -> Tensor:
        """D^-, the public data that a scorer compares a client's data with."""
        self._check_auxiliary()
        return self._negatives

    @property
    def distill_inputs(self) -> Tensor:
        """D_distill, the public data on which the students are distilled."""
        self._check_auxiliary()
        return self._distill

    def _check_auxiliary(self) -> None:
        self._loaded()
        if self.auxiliary is None:
            raise DataError("this federation has no auxiliary data: set data.auxiliary")

    @property
    def test_examples(self) -> Examples:
        """The test data."""
        self._loaded()
        return self._test

    def client_batches(self, index: int, batch_size: int = 32, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs, labels) of one client's data."""
        subset = self._positions(index)
        return TensorBatches(
            self._train.inputs,
            self._train.targets,
            batch_size=batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, _CLIENT_BATCHES, index, seed),
            smallest=min(2, len(subset)),
            subset=subset,
        )

    def distill_batches(
        self, targets: Tensor, batch_size: int = 128, seed: int = 0
    ) -> TensorBatches:
        """Shuffled batches (inputs, targets) of D_distill with the teachers' soft labels."""
        inputs, seed = self.distill_inputs, derive_seed(self.seed, _DISTILL_BATCHES, seed)
        smallest = min(2, len(inputs))
        return TensorBatches(
            inputs, targets, batch_size=batch_size, shuffle=True, seed=seed, smallest=smallest
        )

    def pretrain_batches(self, batch_size: int = 512, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs,) of D_aux."""
        inputs, seed = self.auxiliary_inputs, derive_seed(self.seed, PRETRAIN_BATCHES, seed)
        check_pixels(inputs, "images to learn h_0 from by SimCLR")
        return TensorBatches(inputs, batch_size=batch_size, shuffle=True, seed=seed, smallest=2)

    def train_dataloader(self) -> list[int]:
        """One dummy batch: an epoch of a federation is one round."""
        return [0]

    def test_dataloader(self) -> TensorBatches:
        """The test data, in order."""
        test = self.test_examples
        return TensorBatches(test.inputs, test.targets, batch_size=1024)

    def val_dataloader(self) -> TensorBatches:
        """The test data: the server has no other labeled data."""
        return self.test_dataloader()
