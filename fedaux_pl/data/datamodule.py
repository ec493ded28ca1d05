"""The data of a federation: clients, server and test data."""

import math
from dataclasses import replace
from typing import Any, get_args

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
from fedaux_pl.data.holdings import Holding, PrivateData, PublicData
from fedaux_pl.data.in_memory import Data, as_source
from fedaux_pl.data.input_checks import check_pixels, check_same_kind
from fedaux_pl.data.source import Examples
from fedaux_pl.errors import DataError
from fedaux_pl.functional import derive_seed

# The purposes of the seed. They are part of every derived seed: never renumber them.
_PARTITION, _AUXILIARY_SPLIT, _CLIENT_BATCHES, _DISTILL_BATCHES, PRETRAIN_BATCHES = range(5)
_VALIDATION = 5
_FAST_SAMPLES = 64  # of each client and data set, in a fast_dev_run


class FederatedDataModule(pl.LightningDataModule):
    """The data of a federation: D_1 ... D_n, D^- and D_distill, and the test data.

    Private training data that name their clients stay with them. All others are split by a
    Dirichlet distribution (appendix B of the paper). The auxiliary data is split at random into the
    negatives D^- and the distillation data D_distill, which are disjoint. All data stays in memory,
    on the device of the Trainer.

    Args:
        private: The labeled data of the clients, and the test data: a source or, in Python, a pair
            (training, test) of data sets or arrays (see :class:`fedaux_pl.data.InMemory`).
        auxiliary: The public data, whose labels are not used; None for methods without any. A
            source or, in Python, a data set or an array.
        num_clients: n, the number of clients of a Dirichlet split. Data that name their clients
            have their own number, which replaces this one.
        alpha: The concentration of the Dirichlet distribution. With 0.01 a client holds little
            more than one class; with 100 its classes are nearly balanced. Not used with given
            clients.
        negative_fraction: The share of the auxiliary data that becomes D^-; the rest is D_distill.
        seed: The seed of the split over clients, the split of the auxiliary data and the order of
            all batches.
        validation_fraction: The share of every client's training data that is held out
            as validation data, in [0, 1). 0 for the validation data of ``private``, if it has any.
        classes: The names of the classes in an order that all sites agree on; null for those of the
            source. Integer labels index them, from 0, whatever the names are: with the classes
            ["6", "7"] the integer 1 is class "7", and 6 is refused. Labels that are text (class
            folders, strings) are names: "6" is class "6". In a file of texts an integer is a name
            if a class is named by an index, such as "0" or "1", and an index otherwise.
        holds: Which of the data are here: null for all, in a simulation; ``public`` at the server
            of real sites, which has test and auxiliary data alone; ``private`` at a site, which has
            the training data of one client alone.

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
        private: Data,
        auxiliary: Data | None = None,
        num_clients: int = 20,
        alpha: float = 0.01,
        negative_fraction: float = 0.2,
        seed: int = 0,
        validation_fraction: float = 0.0,
        classes: list[str] | None = None,
        holds: Holding | None = None,
    ) -> None:
        super().__init__()
        if holds not in (None, *get_args(Holding)):
            raise ValueError(f"holds must be public, private or null, but is {holds!r}")
        if holds is not None and validation_fraction:
            raise ValueError(
                f"validation_fraction must be 0 where data are at sites, but is "
                f"{validation_fraction}: the server cannot measure on what sites hold out; give "
                "its source validation data"
            )
        if classes is not None and not 2 <= len(set(classes)) == len(classes):
            raise ValueError(f"classes must be at least 2 different names, but are {classes}")
        if num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, but is {num_clients}")
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite, but is {alpha}")
        if not 0 < negative_fraction < 1:
            raise ValueError(
                f"negative_fraction must lie strictly between 0 and 1, but is {negative_fraction}"
            )
        if not 0 <= validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must lie in [0, 1), but is {validation_fraction}"
            )
        self.private = as_source("private", private)
        self.auxiliary = None if auxiliary is None else as_source("auxiliary", auxiliary)
        self.num_clients = num_clients
        self.alpha = alpha
        self.negative_fraction = negative_fraction
        self.seed = seed
        self.validation_fraction = validation_fraction
        self.class_order = classes
        self.holds: Holding | None = holds
        self.site_sizes: dict[int, int] = {}  # |D_i| of the sites that have answered
        self.site_names: list[str] = []
        self._shared_rows = 0
        self._is_fast = False
        self._private: PrivateData | None = None
        self._public: PublicData | None = None

    def prepare_data(self) -> None:
        """Loads the data in one process per node first, so that the others find it cached."""
        self._load_once()

    def setup(self, stage: str | None = None) -> None:
        """Loads and splits the data, once, and moves it to the Trainer's device."""
        self._load_once()
        if self.trainer is not None:
            self.to(self.trainer.strategy.root_device)

    def _load_once(self) -> None:
        fast = self.trainer is not None and bool(self.trainer.fast_dev_run)  # type: ignore[attr-defined]
        if self._private is None or fast != self._is_fast:
            self._load(_FAST_SAMPLES if fast else None)
            self._is_fast = fast

    def _load(self, at_most: int | None) -> None:
        key = machine_key()
        private = PrivateData.load(
            self.private, self.validation_fraction, self.holds, self.class_order
        )
        public = None
        if self.auxiliary is not None and self.holds != "private":
            inputs = self.auxiliary.auxiliary()[:at_most]
            check_same_kind(private.inputs[0], inputs, "private and auxiliary data")
            seed = derive_seed(self.seed, _AUXILIARY_SPLIT)
            public = PublicData.split(inputs, self.negative_fraction, seed)
            train = private.train
            self._shared_rows = 0 if train is None else count_shared(train.inputs, inputs, key)
            if self._shared_rows:
                rank_zero_warn(
                    f"{self._shared_rows} of {len(inputs)} auxiliary samples are also private "
                    "training samples: h_0 and the scores then depend on private data beyond what "
                    "the privacy guarantee covers; use other auxiliary data, or remove the samples"
                )
        seeds = derive_seed(self.seed, _PARTITION), derive_seed(self.seed, _VALIDATION)
        if self.holds is None:
            private = private.split(self.num_clients, self.alpha, self.validation_fraction, seeds)
        elif private.train is not None:
            # whichever client the server says that this site is, its data are the same
            own = torch.arange(len(private.train))
            private = replace(private, clients=(own,) * self.num_clients)
        if at_most is not None:
            private = private.shorten(at_most)
        self.fingerprints = private.fingerprints(key)
        if public is not None:
            # plain: the auxiliary data is public
            self.fingerprints["auxiliary"] = tensor_digest(public.inputs)
        self.num_clients = len(private.clients) or self.num_clients
        self._private, self._public = private, public

    def to(self, device: torch.device | str) -> "FederatedDataModule":
        """Moves all data to a device, as ``setup`` does under a Trainer."""
        self._private = self._loaded().to(device)
        if self._public is not None:
            self._public = self._public.to(device)
        return self

    def _loaded(self) -> PrivateData:
        if self._private is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._private

    def _train(self) -> Examples:
        if (train := self._loaded().train) is None:
            raise DataError("the server has no private data: they are at the sites")
        return train

    def _labeled(self) -> Examples:
        """The training data or, at the server of sites, the test data."""
        return self._loaded().train or self.test_examples

    def settings(self) -> dict[str, Any]:
        """All settings that determine the data of each client, as plain values."""
        validation, contents = self._loaded().validation, dict(self.fingerprints)
        if self.validation_fraction:  # of the private data, whose fingerprint is there
            del contents["validation"]
        return {
            "private": type(self.private).__name__,
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "num_clients": self.num_clients,
            "alpha": None if self.has_given_clients else self.alpha,
            **({} if self.holds is None else {"holds": self.holds, "classes": list(self.classes)}),
            "negatives": self.negative_fraction,
            "seed": self.seed,
            "contents": contents,
            **({} if validation is None else {"validation": self.validation_fraction or "given"}),
        }

    def release_settings(self) -> dict[str, Any]:
        """The settings that determine what clients release: not those of test data.

        A held-out share is among them, as it changes D_i; given validation data are not.
        """
        settings = self.settings()
        settings["contents"].pop("test", None)
        if not self.validation_fraction:
            settings.pop("validation", None)
            settings["contents"].pop("validation", None)
        return settings

    def client_fingerprints(self) -> list[str]:
        """A keyed hash of each client's inputs and labels, in their order."""
        key, clients = machine_key(), map(self.client, range(self.num_clients))
        return [keyed_fingerprint(key, own.inputs, own.targets) for own in clients]

    @property
    def data_name(self) -> str:
        """The names of the private and the auxiliary data, such as "CIFAR10 + STL10"."""
        sources = (self.private, self.auxiliary)
        return " + ".join(source.data_name for source in sources if source is not None)

    @property
    def key_id(self) -> str:
        """The public name of the key of ``record_digests``."""
        return key_id(machine_key())

    def record_digests(self, client: int) -> NDArray[np.uint64]:
        """Two keyed hashes of each record of D_i, which only this machine can make: (2 |D_i|,).

        The first is of its input and label. The second, of its input alone, recognizes a record
        whose label was corrected, or whose classes are numbered in another order.
        """
        own, key = self.client(client), machine_key()
        kinds = [record_digests(own.inputs, labels, key) for labels in (own.targets, None)]
        return np.concatenate(kinds)

    @property
    def shared_rows(self) -> int:
        """The number of auxiliary samples that are also private training samples."""
        self._loaded()
        return self._shared_rows

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._labeled().classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) for images, (L,) for texts."""
        return tuple(self._labeled().inputs.shape[1:])

    @property
    def input_format(self) -> dict[str, str | int]:
        """See :attr:`Source.input_format`."""
        return self.private.input_format

    @property
    def all_inputs(self) -> list[Tensor]:
        """The inputs of the private data (training, test, validation) and the auxiliary data."""
        inputs = self._loaded().inputs
        return inputs if self._public is None else [*inputs, self._public.inputs]

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
        return list(self._loaded().clients)

    @property
    def has_given_clients(self) -> bool:
        """Whether the data name their clients or are at sites: there is no Dirichlet split."""
        train = self._loaded().train
        return train is None or train.clients is not None or self.holds is not None

    @property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... for a Dirichlet split."""
        return self.site_names or self._loaded().client_names

    @property
    def client_sizes(self) -> list[int]:
        """|D_i| of each client; at the server 0 for a site that has not answered yet."""
        if self.holds == "public":
            return [self.site_sizes.get(client, 0) for client in range(self.num_clients)]
        return [len(indices) for indices in self._loaded().clients]

    def client(self, index: int) -> Examples:
        """D_i, a copy of the private data of one client."""
        train = self._train()
        where = self._positions(index).to(train.inputs.device)
        return Examples(train.inputs[where], train.targets[where], train.classes)

    def class_counts(self) -> NDArray[np.int64]:
        """The number of samples of each class in each D_i, shape (n, C)."""
        targets, size = self._train().targets.cpu(), len(self.classes)
        parts = [torch.bincount(targets[own], minlength=size) for own in self._loaded().clients]
        return torch.stack(parts).numpy()

    def _positions(self, index: int) -> Tensor:
        clients = self._loaded().clients
        if not 0 <= index < len(clients):
            raise IndexError(f"clients are numbered 0 ... {len(clients) - 1}, but got {index}")
        return clients[index]

    @property
    def has_auxiliary(self) -> bool:
        """Whether the auxiliary data are here: not at a site, nor in methods without any."""
        return self._public is not None

    @property
    def auxiliary_inputs(self) -> Tensor:
        """D_aux."""
        return self._auxiliary().inputs

    @property
    def negative_inputs(self) -> Tensor:
        """D^-, the public data that a scorer compares a client's data with."""
        return self._auxiliary().negatives

    @property
    def distill_inputs(self) -> Tensor:
        """D_distill, the public data on which the students are distilled."""
        return self._auxiliary().distill

    @property
    def auxiliary_rows(self) -> dict[str, Tensor]:
        """Where the samples of D^- (``negatives``) and D_distill (``distill``) are in D_aux."""
        public = self._auxiliary()
        return {"negatives": public.negative_rows, "distill": public.distill_rows}

    def _auxiliary(self) -> PublicData:
        self._loaded()
        if self._public is None:
            raise DataError("this federation has no auxiliary data: set data.auxiliary")
        return self._public

    @property
    def test_examples(self) -> Examples:
        """The test data."""
        if (test := self._loaded().test) is None:
            raise DataError("a site has no test data: they are at the server")
        return test

    @property
    def validation_examples(self) -> Examples | None:
        """The validation data, held out at the clients or given; None if there are none."""
        return self._loaded().validation

    @property
    def evaluation_examples(self) -> Examples:
        """The data to measure rounds on: the validation data or, without any, the test data."""
        return self.validation_examples or self.test_examples

    def client_batches(self, index: int, batch_size: int = 32, seed: int = 0) -> TensorBatches:
        """Shuffled batches (inputs, labels) of one client's data."""
        train, subset = self._train(), self._positions(index)
        return TensorBatches(
            train.inputs,
            train.targets,
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
        return _in_order(self.test_examples)

    def val_dataloader(self) -> TensorBatches:
        """The validation data or, without any, the test data, in order."""
        return _in_order(self.evaluation_examples)

    def predict_dataloader(self) -> TensorBatches:
        """The test data, in order."""
        return self.test_dataloader()


def _in_order(examples: Examples) -> TensorBatches:
    # 10,000 test images are five equal batches: cuDNN tries its kernels for every other size
    return TensorBatches(examples.inputs, examples.targets, batch_size=2000)
