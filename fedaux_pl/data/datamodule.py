"""Who holds which data: clients, server and test set of a federation, and D_aux on its own."""

import math
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError
from fedaux_pl.functional import derive_seed, dirichlet_partition

# What a seed is used for; part of every derived seed, so never renumber.
_PARTITION, _AUXILIARY_SPLIT, _CLIENT_BATCHES, _DISTILL_BATCHES, _PRETRAIN_BATCHES = range(5)


class FederatedDataModule(pl.LightningDataModule):
    """The data of a federation: D_1 ... D_n, D^- and D_distill, and the test data.

    The private training data are split over the clients (appendix B of the paper), the auxiliary
    data at random into negatives D^- and distillation data D_distill, which are disjoint. All of
    it stays in memory, on the device of the Trainer it is attached to.

    Args:
        private: The labelled data that the clients hold, and the test data.
        auxiliary: The public data whose labels nobody looks at; None for methods without any.
        num_clients: n, the number of clients.
        alpha: The Dirichlet's concentration: 0.01 gives a client little more than one class, 100
            nearly the mixture of the whole.
        negatives: The share of the auxiliary data that becomes D^-; the rest is D_distill.
        seed: Determines the split over clients, the split of the auxiliary data and the order of
            all batches.
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
        self.private = private
        self.auxiliary = auxiliary
        self.num_clients = num_clients
        self.alpha = alpha
        self.negatives = negatives
        self.seed = seed
        self._clients: list[Tensor] | None = None

    def prepare_data(self) -> None:
        """Loads the data in one process of a node, before the others find them on its disk."""
        if self._clients is None:
            self._load()

    def setup(self, stage: str | None = None) -> None:
        """Loads and splits the data, once, and moves them to the Trainer's device."""
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
                    "data must be labelled"
                )
        _check_shapes(train.inputs, test.inputs, "private training and test data")
        self._train, self._test = train, test
        if self.auxiliary is not None:
            inputs = self.auxiliary.auxiliary()
            _check_shapes(train.inputs, inputs, "private and auxiliary data")
            count = round(len(inputs) * self.negatives)
            if not 0 < count < len(inputs):
                raise DataError(
                    f"{len(inputs)} auxiliary samples leave D^- or D_distill empty at negatives = "
                    f"{self.negatives}: use more auxiliary data or another share"
                )
            generator = torch.Generator().manual_seed(derive_seed(self.seed, _AUXILIARY_SPLIT))
            order = torch.randperm(len(inputs), generator=generator)
            self._auxiliary = inputs
            self._negatives = inputs[order[:count].sort().values]
            self._distill = inputs[order[count:].sort().values]
        self.fingerprints = {
            "private": tensor_digest(train.inputs, train.targets),
            "test": tensor_digest(test.inputs, test.targets),
        }
        if self.auxiliary is not None:
            self.fingerprints["auxiliary"] = tensor_digest(self._auxiliary)
        self._clients = dirichlet_partition(
            train.targets, self.num_clients, self.alpha, derive_seed(self.seed, _PARTITION)
        )

    def to(self, device: torch.device | str) -> "FederatedDataModule":
        """Moves all data to a device; under a Trainer this has happened by itself."""
        self._loaded()
        self._train, self._test = self._train.to(device), self._test.to(device)
        if self.auxiliary is not None:
            self._auxiliary = self._auxiliary.to(device)
            self._negatives = self._negatives.to(device)
            self._distill = self._distill.to(device)
        return self

    def _loaded(self) -> list[Tensor]:
        if self._clients is None:
            raise RuntimeError("the data are not loaded yet: call setup() first")
        return self._clients

    def settings(self) -> dict[str, Any]:
        """All that determines who holds which data, as plain values."""
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

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        self._loaded()
        return self._train.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) for images, (L,) for text."""
        self._loaded()
        return tuple(self._train.inputs.shape[1:])

    @property
    def input_format(self) -> dict[str, str | int]:
        """What it takes to make such inputs of other samples (see ``Source.input_format``)."""
        return self.private.input_format

    @property
    def all_inputs(self) -> list[Tensor]:
        """The private training data, the test data and the auxiliary data, where there are any."""
        self._loaded()
        known = [self._train.inputs, self._test.inputs]
        return known if self.auxiliary is None else [*known, self._auxiliary]

    def check_model(self, model: nn.Module) -> None:
        """Refuses a model that cannot read these data, or would read them otherwise.

        Raises:
            ValueError: If there is an input that the model was not made for.
            DataError: If a source makes its inputs for another kind of model.
        """
        for inputs in self.all_inputs:
            model.check_inputs(inputs)  # type: ignore[operator]
        for source in (self.private, self.auxiliary):
            if source is not None:
                source.check_model(model)

    @property
    def client_indices(self) -> list[Tensor]:
        """The positions in the private training data that each client holds."""
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
        """The labels of D_i alone, for those who need no inputs."""
        return self._train.targets[self._positions(index).to(self._train.targets.device)]

    def _positions(self, index: int) -> Tensor:
        clients = self._loaded()
        if not 0 <= index < len(clients):
            raise IndexError(f"clients are numbered 0 ... {len(clients) - 1}, but got {index}")
        return clients[index]

    @property
    def auxiliary_inputs(self) -> Tensor:
        """D_aux, all of it."""
        self._auxiliary_loaded()
        return self._auxiliary

    @property
    def negative_inputs(self) -> Tensor:
        """D^-, the public data that the clients' own data are told from."""
        self._auxiliary_loaded()
        return self._negatives

    @property
    def distill_inputs(self) -> Tensor:
        """D_distill, the public data on which the clients teach."""
        self._auxiliary_loaded()
        return self._distill

    def _auxiliary_loaded(self) -> None:
        self._loaded()
        if self.auxiliary is None:
            raise DataError("this federation has no auxiliary data: give the data module some")

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
        """Shuffled batches (inputs, targets) of D_distill with the soft labels of the teachers."""
        return TensorBatches(
            self.distill_inputs,
            targets,
            batch_size=batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, _DISTILL_BATCHES, seed),
            smallest=min(2, len(self.distill_inputs)),
        )

    def pretrain_batches(self, batch_size: int = 512, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs,) of D_aux."""
        return TensorBatches(
            self.auxiliary_inputs,
            batch_size=batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, _PRETRAIN_BATCHES, seed),
            smallest=2,
        )

    def train_dataloader(self) -> list[int]:
        """One batch that means nothing: an epoch of a federation is one round."""
        return [0]

    def test_dataloader(self) -> TensorBatches:
        """The test data in large batches, in their order."""
        test = self.test_examples
        return TensorBatches(test.inputs, test.targets, batch_size=1024)

    def val_dataloader(self) -> TensorBatches:
        """The test data: a federation has no other labelled data that the server may see."""
        return self.test_dataloader()


class AuxiliaryDataModule(pl.LightningDataModule):
    """The auxiliary data D_aux for self-supervised pre-training, with a probe to watch it by.

    Args:
        auxiliary: The public data to train on; labels are not used.
        probe: Labelled data that only measure how good the features are: its test data are
            classified by their nearest neighbours among its training data. None for no measuring.
        batch_size: Images of a batch in each process, each seen in two views.
        seed: Determines the order of the batches.
    """

    def __init__(
        self,
        auxiliary: Source,
        probe: Source | None = None,
        batch_size: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 2:
            raise ValueError(f"batch_size must be at least 2, but is {batch_size}")
        self.auxiliary = auxiliary
        self.probe = probe
        self.batch_size = batch_size
        self.seed = seed
        self._inputs: Tensor | None = None
        self._probes: list[Examples] = []

    def setup(self, stage: str | None = None) -> None:
        """Loads the data, once, and moves them to the Trainer's device."""
        if self._inputs is None:
            self._inputs = self.auxiliary.auxiliary()
            if self.probe is not None:
                self._probes = [self.probe.train(), self.probe.test()]
                for examples in self._probes:
                    _check_shapes(self._inputs, examples.inputs, "auxiliary and probe data")
        if self.trainer is not None:
            device = self.trainer.strategy.root_device
            self._inputs = self._inputs.to(device)
            self._probes = [examples.to(device) for examples in self._probes]

    def train_dataloader(self) -> TensorBatches:
        """Shuffled batches of D_aux; under several processes each sees its own share."""
        if self._inputs is None:
            raise RuntimeError("the data are not loaded yet: call setup() first")
        rank, world_size = _process(self.trainer)
        return TensorBatches(
            self._inputs,
            batch_size=self.batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, _PRETRAIN_BATCHES),
            smallest=2,
            rank=rank,
            world_size=world_size,
        )

    def val_dataloader(self) -> list[TensorBatches]:
        """The probe's training data (the neighbours) and its test data (the queries)."""
        rank, world_size = _process(self.trainer)
        return [
            TensorBatches(
                examples.inputs,
                examples.targets,
                batch_size=1024,
                rank=rank,
                world_size=world_size,
            )
            for examples in self._probes
        ]


def _process(trainer: pl.Trainer | None) -> tuple[int, int]:
    return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)


def _check_shapes(one: Tensor, other: Tensor, what: str) -> None:
    if one.shape[1:] != other.shape[1:]:
        raise DataError(
            f"{what} must have samples of the same shape, but have {tuple(one.shape[1:])} and "
            f"{tuple(other.shape[1:])}: set `size` (or `channels`) of one source to match"
        )
