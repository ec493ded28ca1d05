"""The data of a federation as a LightningDataModule."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedaux_pl.data.as_source import Data, as_source
from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.data.auxiliary_split import AuxiliaryData, split_auxiliary
from fedaux_pl.data.batches import TensorBatches, batches_in_order, shuffled_batches
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.client_split import Split, hold_out, split_at_random, split_by_client
from fedaux_pl.data.downloads import fetch_missing
from fedaux_pl.data.fingerprints import keyed_fingerprint, machine_key
from fedaux_pl.data.held_data import HELD_PARTS, HeldData, Holding
from fedaux_pl.data.input_checks import check_same_kind, check_unit_range
from fedaux_pl.data.lazy_inputs import Inputs, Memory, choose_memory, chunks, keep_in_host, select
from fedaux_pl.data.read_private import PrivateParts, check_several_classes, read_private
from fedaux_pl.data.seed_purposes import DataSeed
from fedaux_pl.data.shared_samples import check_shared, count_shared
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, check_setting, is_positive
from fedaux_pl.functional import derive_seed
from fedaux_pl.lightning import pl
from fedaux_pl.names import terminal_safe

_FAST_DEV_SAMPLES = 64  # of each client and data set in a fast_dev_run


class FederatedDataModule(pl.LightningDataModule):
    """The data of a federation: the clients' private data, the public data and the test data.

    If the private training data name their clients, every client holds its own samples. Otherwise
    the samples are split over the clients at random, by default with a Dirichlet distribution
    (appendix B of the paper). The public data D_aux are split at random into the negatives D^-,
    which FedAUX compares private data with, and D_distill, on which the server distills.

    Args:
        private: The labeled training data of all clients, and the test data: a source or, in
            Python, a pair (training, test) of data sets or arrays (see
            ``fedaux_pl.data.InMemory``).
        auxiliary: The public data D_aux, in the same forms as ``private``; their labels are not
            used. Null for a method that needs no public data.
        num_clients: n, the number of clients. If the data name their clients, the number of names
            is used instead.
        alpha: The concentration of the Dirichlet distribution that splits the samples over the
            clients. With 0.01 a client holds little more than one class; with 100 its classes are
            nearly balanced. If the data name their clients, it has no effect.
        negative_fraction: The fraction of D_aux that becomes D^-; the rest is for distillation. Set
            it to 0 for methods and scorings that do not use D^-, such as FedDF, ``MeanScoring`` and
            ``StatisticsScoring``.
        seed: The seed of all splits and of the order of all batches.
        validation_fraction: The fraction of every client's training data that is held out as
            validation data, in [0, 1). With 0 the validation data are those of ``private``, if it
            has any.
        classes: The names of the classes, in an order that all sites agree on; null for the names
            in the source. Integer labels are positions in this list: with ["6", "7"] the label 1
            is class "7". Labels that are text are names. In a file of texts an integer is a name
            if one of the classes is called like a position, such as "0".
        holds: The data that this process holds: null for all data; ``public`` at the server of
            real sites, which holds the test and auxiliary data; ``private`` at a real site, which
            holds the training data of one client.
        memory: Where images stay: on the ``device``, in ``host`` memory or on ``disk``. On disk
            stay the uncompressed arrays of NpzImages and the files of ImageFolder and
            ImageNetSubset; images of all other sources then stay in host memory. Null for the first
            of the three that has enough room. The choice does not change the weights, bit for bit
            on the CPU.
        download: Whether to download missing data sets, from torchvision's addresses or from the
            Hugging Face hub. With false, an error names every missing file. Null to follow the
            option ``download`` of each source; sources of the hub then download.
        split: How samples are split if the data do not name their clients: ``equal``, as in the
            paper, gives all clients the same number of samples; ``unequal`` draws from the same
            distribution and lets the sizes differ; ``shards`` gives each client two shards of the
            samples sorted by class (McMahan et al. 2017).
        name: The name of the private data in names of runs, in tables and on model cards; null for
            the name of the data set, of its file or of its folder.
        distill_fraction: The fraction of the samples for distillation that D_distill keeps, in
            (0, 1]; they are drawn at random, once. A smaller fraction makes rounds faster.

    Examples:
        >>> from fedaux_pl.data import Digits, FederatedDataModule
        >>> data = FederatedDataModule(Digits(), auxiliary=Digits(), num_clients=4, alpha=100)
        >>> data.setup()
        >>> len(data.negative_inputs), len(data.distill_inputs), data.client_sizes
        (120, 478, [225, 226, 225, 225])
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
        memory: Memory | None = None,
        download: bool | None = None,
        split: Split = "equal",
        name: str | None = None,
        distill_fraction: float = 1.0,
    ) -> None:
        super().__init__()
        is_allowed = name is None or bool(name.strip())
        check_setting("name", name, is_allowed, "be a name or null")
        is_allowed = memory in (*get_args(Memory), None)
        check_setting("memory", memory, is_allowed, "be device, host, disk or null")
        is_allowed = holds in (*get_args(Holding), None)
        check_setting("holds", holds, is_allowed, "be public, private or null")
        is_allowed = classes is None or 2 <= len(set(classes)) == len(classes)
        check_setting("classes", classes, is_allowed, "be at least 2 different names")
        check_setting("num_clients", num_clients, num_clients >= 1, "be at least 1")
        check_setting("alpha", alpha, 0 < alpha < math.inf, "be positive and finite")
        is_allowed = split in get_args(Split)
        check_setting("split", split, is_allowed, "be equal, unequal or shards")
        is_allowed = 0 <= negative_fraction < 1
        check_setting("negative_fraction", negative_fraction, is_allowed, "lie in [0, 1)")
        is_allowed = is_positive(distill_fraction) and distill_fraction <= 1
        check_setting("distill_fraction", distill_fraction, is_allowed, "lie in (0, 1]")
        is_allowed = 0 <= validation_fraction < 1
        check_setting("validation_fraction", validation_fraction, is_allowed, "lie in [0, 1)")
        is_allowed = holds != "public" or validation_fraction == 0
        expected = "be 0 at the server of sites: its source can give validation data"
        check_setting("validation_fraction", validation_fraction, is_allowed, expected)
        self.private = as_source("private", private)
        self.auxiliary = None if auxiliary is None else as_source("auxiliary", auxiliary)
        self.alpha = alpha
        self.split: Split = split
        self.negative_fraction = negative_fraction
        self.distill_fraction = distill_fraction
        self.seed = seed
        self.validation_fraction = validation_fraction
        self.class_order = classes
        self.holds: Holding | None = holds
        self.memory: Memory | None = memory
        self.download = download
        self.name = name
        self.site_names: list[str] = []  # set by the server of real sites before setup
        self.site_sizes: dict[int, int] = {}  # |D_i| of the sites that have reported it
        self._num_clients = num_clients
        self._held: HeldData | None = None
        self._max_samples: int | None = None  # of each client and data set in ``_held``

    def __repr__(self) -> str:
        about = f"{terminal_safe(self.data_name)}, {self.num_clients} clients"
        if self._held is not None:
            sizes = self.client_sizes
            about += f" of {min(sizes)} to {max(sizes)} samples, {len(self.classes)} classes"
        return f"FederatedDataModule({about})"

    def __str__(self) -> str:  # Lightning's would list dataloaders that do not exist
        return repr(self)

    # Lightning's hooks

    def prepare_data(self) -> None:
        """Read the data in one process per node first, so that all others find them cached."""
        is_fast = self.trainer is not None and bool(self.trainer.fast_dev_run)  # type: ignore[attr-defined]
        max_samples = _FAST_DEV_SAMPLES if is_fast else None
        if self._held is None or max_samples != self._max_samples:
            self._held = self._read(max_samples)
            self._max_samples = max_samples

    def setup(self, stage: str | None = None) -> None:
        """Read and split the data, once, and move them to the Trainer's device."""
        self.prepare_data()
        if self.trainer is not None:
            self.to(self.trainer.strategy.root_device)

    def train_dataloader(self) -> list[int]:
        """Return one dummy batch, because an epoch of a federation is one round."""
        return [0]

    def val_dataloader(self) -> TensorBatches:
        """Return the validation data in order or, if there are none, the test data."""
        return batches_in_order(self.evaluation_examples.inputs, self.evaluation_examples.targets)

    def test_dataloader(self) -> TensorBatches:
        """Return the test data in order."""
        return batches_in_order(self.test_examples.inputs, self.test_examples.targets)

    predict_dataloader = test_dataloader

    def to(self, device: torch.device | str) -> "FederatedDataModule":
        """Move all data to a device, as ``setup`` does under a Trainer."""
        self._held = self._loaded().to(device)
        return self

    # What setup does, step by step

    def _read(self, max_samples: int | None) -> HeldData:
        """Read and split all data, ``max_samples`` of each client and data set; None for all."""
        memory = self._choose_memory()
        self._configure_sources(memory)
        self._download_missing_files()
        private = read_private(
            self.private, self.held_parts, self.class_order or (), self.site_names, memory
        )
        clients = self._split_over_clients(private.training)
        clients, validation = self._hold_out_validation_data(clients, private)
        if self.holds == "private":
            # a site holds the same data whichever client of the federation it is
            clients *= self._num_clients
        auxiliary = self._read_auxiliary(memory, max_samples)
        held = HeldData(private.training, clients, private.test, validation, auxiliary)
        if max_samples is not None:
            held = held.first(max_samples)
        key = machine_key()
        num_shared = _count_shared_samples(held, key)
        return replace(held, num_shared=num_shared, fingerprints=_fingerprint_parts(held, key))

    def _choose_memory(self) -> Memory:
        """Return where images stay."""
        if self.memory is not None:
            return self.memory
        size = sum(source.image_bytes() for source in self._sources())
        if self.trainer is None:
            return choose_memory(size, torch.device("cpu"), processes=1)
        return choose_memory(size, self.trainer.strategy.root_device, self.trainer.num_devices)

    def _configure_sources(self, memory: Memory) -> None:
        """Pass the settings of this module to its sources."""
        for source in self._sources():
            source.on_disk = memory == "disk"
            if self.download is not None:
                source.download = self.download
        # a list stays a list: cache keys of texts contain its form
        self.private.class_order = self.class_order or ()

    def _download_missing_files(self) -> None:
        """Download the missing files of all parts that this process holds, or raise an error."""
        downloads = self.private.downloads([p for p in self.held_parts if p != "auxiliary"])
        if self.auxiliary is not None and "auxiliary" in self.held_parts:
            downloads += self.auxiliary.downloads(["auxiliary"])
        fetch_missing(downloads)

    def _split_over_clients(self, training: Examples | None) -> tuple[Tensor, ...]:
        """Return the positions of each client's samples; none if the data are at the sites."""
        if training is None:
            return ()
        if self.at_sites:
            return (torch.arange(len(training)),)
        check_several_classes(training)
        if training.clients is not None:
            return split_by_client(training.clients, training.client_names)
        seed = derive_seed(self.seed, DataSeed.CLIENT_SPLIT)
        return split_at_random(training.targets, self._num_clients, self.split, self.alpha, seed)

    def _hold_out_validation_data(
        self, clients: tuple[Tensor, ...], private: PrivateParts
    ) -> tuple[tuple[Tensor, ...], Examples | None]:
        """Return the positions that clients keep, and the validation data; None without any."""
        if self.validation_fraction == 0 or private.training is None:
            return clients, private.validation
        if private.validation is not None:
            raise DataError(
                f"{type(self.private).__name__} gives {len(private.validation)} validation "
                f"samples, but validation_fraction = {self.validation_fraction} lets the clients "
                "hold out more: set it to 0, or give no validation data"
            )
        seed = derive_seed(self.seed, DataSeed.HELD_OUT_SAMPLES)
        kept, held_out = hold_out(clients, self.validation_fraction, seed)
        return kept, private.training.take(held_out)

    def _read_auxiliary(self, memory: Memory, max_samples: int | None) -> AuxiliaryData | None:
        """Read and split the auxiliary data; None if this process holds none."""
        if self.auxiliary is None or "auxiliary" not in self.held_parts:
            return None
        inputs = self.auxiliary.auxiliary()
        if memory != "device":
            inputs = keep_in_host(inputs)
        if max_samples is not None:
            inputs = select(inputs, slice(max_samples))
        seed = derive_seed(self.seed, DataSeed.AUXILIARY_SPLIT)
        return split_auxiliary(inputs, self.negative_fraction, self.distill_fraction, seed)

    def _sources(self) -> list[Source]:
        return [source for source in (self.private, self.auxiliary) if source is not None]

    def _loaded(self) -> HeldData:
        if self._held is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._held

    # Batches

    def client_batches(
        self,
        index: int,
        batch_size: int = 32,
        seed: int = 0,
        balanced: bool = False,
        augmentation: Augmentation | None = None,
    ) -> TensorBatches:
        """Return shuffled batches (inputs, labels) of D_i, the training data of one client.

        Args:
            index: The number of the client.
            batch_size: Samples per batch.
            seed: With the seed of this module, the seed of the order, such as the round.
            balanced: Whether batches have a third tensor, a weight for each sample, such that all
                classes of the client have the same total weight.
            augmentation: Random changes of the images; None for none.
        """
        held = self._loaded()
        training = held.require_training()
        weights = (held.sample_weights,) if balanced else ()
        return shuffled_batches(
            training.inputs,
            training.targets,
            *weights,
            batch_size=batch_size,
            seed=derive_seed(self.seed, DataSeed.CLIENT_BATCHES, index, seed),
            subset=held.clients[index],
            augmentation=augmentation,
        )

    def distill_batches(
        self,
        targets: Tensor,
        batch_size: int,
        seed: int = 0,
        augmentation: Augmentation | None = None,
    ) -> TensorBatches:
        """Return shuffled batches of D_distill with ``targets``, the soft labels of its samples."""
        return shuffled_batches(
            self.distill_inputs,
            targets,
            batch_size=batch_size,
            seed=derive_seed(self.seed, DataSeed.DISTILLATION_BATCHES, seed),
            augmentation=augmentation,
        )

    def pretrain_batches(
        self, batch_size: int = 512, seed: int = 0, targets: Tensor | None = None
    ) -> TensorBatches:
        """Return shuffled batches of D_aux, with the target of each sample if there are targets.

        Every batch has at least 2 samples, because SimCLR compares the samples of a batch.
        """
        inputs = self.auxiliary_inputs
        check_unit_range(inputs, "images to learn h_0 from by SimCLR")
        return TensorBatches(
            inputs,
            *(() if targets is None else (targets,)),
            batch_size=batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, DataSeed.PRETRAINING_BATCHES, seed),
            smallest=2,
        )

    # The data that this process holds

    @property
    def held_parts(self) -> tuple[str, ...]:
        """The parts of the data that this process holds, of "train", "test" and "auxiliary"."""
        return HELD_PARTS[self.holds]

    @property
    def at_sites(self) -> bool:
        """Whether the clients are real sites; this process is then the server or one of them."""
        return self.holds is not None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        held = self._loaded()
        return (held.training or held.require_test()).classes

    @property
    def all_inputs(self) -> list[Inputs]:
        """The inputs of the training, test, validation and auxiliary data that are held."""
        return self._loaded().all_inputs

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) for images and (L,) for texts."""
        return tuple(self.all_inputs[0].shape[1:])

    @property
    def training_examples(self) -> Examples:
        """The training data of all clients, with the samples that clients hold out."""
        return self._loaded().require_training()

    @property
    def test_examples(self) -> Examples:
        """The test data. If they name their clients, they also list the names."""
        return self._loaded().require_test()

    @property
    def validation_examples(self) -> Examples | None:
        """The validation data, held out by the clients or given by the source; None without any."""
        return self._loaded().validation

    @property
    def evaluation_examples(self) -> Examples:
        """The data on which rounds are measured: validation data or, without any, test data."""
        return self.validation_examples or self.test_examples

    @property
    def voting_examples(self) -> Examples:
        """The data by which clients vote: the validation data or, without any, D_1 ... D_n."""
        if self.validation_examples is not None:
            return self.validation_examples
        train = self.training_examples
        if self.at_sites or sum(self.client_sizes) == len(train):
            return train
        return train.take(torch.cat(self.client_indices))  # of a fast_dev_run

    @property
    def has_auxiliary(self) -> bool:
        """Whether this process holds auxiliary data: a site does not, nor do methods without."""
        return self._loaded().auxiliary is not None

    @property
    def auxiliary_inputs(self) -> Inputs:
        """D_aux, the public inputs."""
        return self._loaded().require_auxiliary().inputs

    @property
    def negative_inputs(self) -> Inputs:
        """D^-, the public inputs that a scorer compares a client's data with."""
        return self._loaded().require_auxiliary().negatives

    @property
    def distill_inputs(self) -> Inputs:
        """D_distill, the public inputs on which the students are distilled."""
        return self._loaded().require_auxiliary().distill

    @property
    def auxiliary_rows(self) -> dict[str, Tensor]:
        """The positions in D_aux of the samples of D^- (``negatives``) and D_distill."""
        auxiliary = self._loaded().require_auxiliary()
        return {"negatives": auxiliary.negative_rows, "distill": auxiliary.distill_rows}

    @property
    def shared_rows(self) -> int:
        """The number of auxiliary samples that are also private training samples."""
        return self._loaded().num_shared

    def check_model(self, model: nn.Module) -> None:
        """Raise a ValueError or a DataError if the model cannot read, or misreads, the inputs."""
        for inputs in self.all_inputs:
            # every byte is a valid pixel, so that one image shows whether the shape fits
            checked = [inputs[:1]] if inputs.dtype == torch.uint8 else chunks(inputs)
            for chunk in checked:
                model.check_inputs(chunk)  # type: ignore[operator]
        for source in self._sources():
            source.check_model(model)

    # The clients

    @property
    def num_clients(self) -> int:
        """n, the number of clients: those that the data name, or the argument ``num_clients``."""
        num_held = 0 if self._held is None else len(self._held.clients)
        return num_held or self._num_clients

    @property
    def has_given_clients(self) -> bool:
        """Whether the data name their clients, or clients are real sites: no random split."""
        return self.at_sites or self.training_examples.clients is not None

    @property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... if the data name no clients."""
        return self.site_names or self._loaded().client_names

    @property
    def client_sizes(self) -> list[int]:
        """|D_i| of each client; at the server 0 for a site that has not reported its size."""
        if "train" not in self.held_parts:
            return [self.site_sizes.get(client, 0) for client in range(self.num_clients)]
        return [len(positions) for positions in self.client_indices]

    @property
    def client_indices(self) -> tuple[Tensor, ...]:
        """For each client the ascending positions of its samples in the training data."""
        return self._loaded().clients

    def client(self, index: int) -> Examples:
        """Return D_i, a copy of the private data of one client."""
        return self._loaded().client(index)

    def class_counts(self) -> NDArray[np.int64]:
        """Return the number of samples of each class in each D_i, shape (n, C)."""
        return self._loaded().class_counts()

    # Names, settings and fingerprints

    @property
    def private_name(self) -> str:
        """The name of the private data."""
        return self.name or self.private.data_name

    @property
    def data_name(self) -> str:
        """The names of the private and the auxiliary data, such as "CIFAR10 + STL10"."""
        names = [self.private_name]
        if self.auxiliary is not None:
            names.append(self.auxiliary.data_name)
        return " + ".join(names)

    @property
    def input_format(self) -> dict[str, str | int]:
        """How new samples become inputs: see ``Source.input_format``."""
        return self.private.input_format

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each data set; hashes of private data have a secret key."""
        return self._loaded().fingerprints

    def client_fingerprints(self) -> list[str]:
        """Return a hash of the inputs and labels of each client, with a secret key."""
        key = machine_key()
        clients = map(self.client, range(self.num_clients))
        return [keyed_fingerprint(key, client.inputs, client.targets) for client in clients]

    def settings(self) -> dict[str, Any]:
        """Return all settings that determine the data of each client, as plain values."""
        fingerprints = dict(self.fingerprints)
        uses_alpha = not self.has_given_clients and self.split != "shards"
        settings: dict[str, Any] = {
            "private": type(self.private).__name__,
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "num_clients": self.num_clients,
            "alpha": self.alpha if uses_alpha else None,
        }
        if self.split != "equal" and not self.has_given_clients:
            settings["split"] = self.split
        if self.at_sites:
            settings["holds"] = self.holds
            settings["classes"] = list(self.classes)
        settings["negatives"] = self.negative_fraction
        settings["seed"] = self.seed
        settings["contents"] = fingerprints
        if self.distill_fraction != 1:
            settings["distill_fraction"] = self.distill_fraction
        if self.validation_fraction:
            # the fingerprint of the private data covers the samples that clients hold out
            del fingerprints["validation"]
        if self.validation_examples is not None:
            settings["validation"] = self.validation_fraction or "given"
        return settings


def _count_shared_samples(held: HeldData, key: bytes) -> int:
    """Count auxiliary samples that are private, and refuse auxiliary data of which most are."""
    if held.auxiliary is None:
        return 0
    inputs = held.auxiliary.inputs
    check_same_kind(held.all_inputs[0], inputs, "private and auxiliary data")
    if held.training is None:
        return 0
    count = count_shared(held.training.inputs, inputs, key)
    check_shared(count, len(inputs))
    return count


def _fingerprint_parts(held: HeldData, key: bytes) -> dict[str, str]:
    """Hash the data sets that are held; hashes of private data have a secret key."""
    fingerprints = {}
    for name, examples in held.examples.items():
        tensors = [examples.inputs, examples.targets]
        if name == "training" and examples.clients is not None:
            tensors.append(examples.clients)
        name_in_settings = "private" if name == "training" else name
        fingerprints[name_in_settings] = keyed_fingerprint(key, *tensors)
    if held.auxiliary is not None:
        fingerprints["auxiliary"] = tensor_digest(held.auxiliary.inputs)
    return fingerprints
