"""The data of a federation: clients, server and test data."""

import math
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedaux_pl.data import holdings
from fedaux_pl.data.batches import TensorBatches, fit_batch_size
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.downloads import fetch_missing
from fedaux_pl.data.fingerprints import keyed_fingerprint, machine_key
from fedaux_pl.data.holdings import Holding, PrivateData, PublicData, Split
from fedaux_pl.data.in_memory import Data, as_source
from fedaux_pl.data.input_checks import check_unit_range
from fedaux_pl.data.lazy_inputs import Inputs, Memory, choose_memory, chunks, keep_in_host, select
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, check_setting, is_positive
from fedaux_pl.functional import balanced_weights, derive_seed
from fedaux_pl.lightning import pl
from fedaux_pl.names import terminal_safe


class FederatedDataModule(pl.LightningDataModule):
    """The data of a federation: D_1 ... D_n, D^- and D_distill, and the test data.

    Private training data that name their clients stay with them. All others are split by a
    Dirichlet distribution (appendix B of the paper). The auxiliary data is split at random into the
    negatives D^- and the distillation data D_distill. Data stay where ``memory`` says.

    Args:
        private: The labeled data of the clients, and the test data: a source or, in Python, a pair
            (training, test) of data sets or arrays (see ``fedaux_pl.data.InMemory``).
        auxiliary: The public data, likewise, whose labels are not used; None for none.
        num_clients: n, the number of clients; replaced by that of data that name their clients.
        alpha: The concentration of the Dirichlet distribution, without given clients. With 0.01 a
            client holds little more than one class; with 100 its classes are nearly balanced.
        negative_fraction: The fraction of D_aux that becomes D^-; the rest is D_distill. 0 for
            methods and scorings that do not use D^-, such as FedDF, ``MeanScoring`` and
            ``StatisticsScoring``.
        seed: The seed of the splits and of the order of all batches.
        validation_fraction: The fraction of every client's training data that is held out as
            validation data, in [0, 1). 0 for the validation data of ``private``, if it has any.
        classes: The names of the classes in an order that all sites agree on; null for those of the
            source. Integer labels index them: with ["6", "7"] the integer 1 is class "7". Text is a
            name; in a file of texts an integer is one if a class is named by an index, such as "0".
        holds: Which data are here: null for all; ``public`` at the server of real sites, test and
            auxiliary data alone; ``private`` at a site, the training data of one client.
        memory: Where images stay: on the ``device``, in ``host`` memory or on ``disk``: arrays of
            NpzImages without compression, files of ImageFolder and ImageNetSubset; all others are
            in host memory then. Null for the first that has room. The weights are the same, bit for
            bit on the CPU.
        download: Whether to download missing data sets, by torchvision's addresses or from the
            Hugging Face hub. With false, an error names every missing file. Null for ``download``
            of each source; sources of the hub then download.
        split: The split without given clients: ``equal``, the paper's, gives all clients as many
            samples; ``unequal`` draws the same distributions and lets sizes differ; ``shards``
            gives a client two shards of the samples sorted by class (McMahan et al. 2017).
        name: What the private data are called in names of runs, in tables and on model cards; null
            for the name of the data set, of its file or of its folder.
        distill_fraction: The fraction of the samples for distillation that D_distill keeps, in
            (0, 1], drawn once at random. A smaller part makes rounds faster.

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
        check_setting("name", name, name is None or bool(name.strip()), "be a name or null")
        is_known = memory in (*get_args(Memory), None)
        check_setting("memory", memory, is_known, "be device, host, disk or null")
        is_known = holds in (*get_args(Holding), None)
        check_setting("holds", holds, is_known, "be public, private or null")
        are_names = classes is None or 2 <= len(set(classes)) == len(classes)
        check_setting("classes", classes, are_names, "be at least 2 different names")
        check_setting("num_clients", num_clients, num_clients >= 1, "be at least 1")
        check_setting("alpha", alpha, 0 < alpha < math.inf, "be positive and finite")
        is_known = split in get_args(Split)
        check_setting("split", split, is_known, "be equal, unequal or shards")
        is_fraction = 0 <= negative_fraction < 1
        check_setting("negative_fraction", negative_fraction, is_fraction, "lie in [0, 1)")
        is_fraction = is_positive(distill_fraction) and distill_fraction <= 1
        check_setting("distill_fraction", distill_fraction, is_fraction, "lie in (0, 1]")
        is_fraction = 0 <= validation_fraction < 1
        check_setting("validation_fraction", validation_fraction, is_fraction, "lie in [0, 1)")
        is_allowed = holds != "public" or not validation_fraction
        expected = "be 0 at the server of sites: its source can give validation data"
        check_setting("validation_fraction", validation_fraction, is_allowed, expected)
        self.private = as_source("private", private)
        self.auxiliary = None if auxiliary is None else as_source("auxiliary", auxiliary)
        self.num_clients = num_clients
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
        self.site_sizes: dict[int, int] = {}  # |D_i| of the sites that have answered
        self.site_names: list[str] = []
        self._is_fast = False  # whether the loaded data are those of a fast_dev_run
        self._private: PrivateData | None = None
        self._public: PublicData | None = None

    def __repr__(self) -> str:
        about = f"{terminal_safe(self.data_name)}, {self.num_clients} clients"
        if self._private is not None:
            sizes = self.client_sizes
            about += f" of {min(sizes)} to {max(sizes)} samples, {len(self.classes)} classes"
        return f"FederatedDataModule({about})"

    def __str__(self) -> str:  # Lightning's lists the dataloaders that it has not got
        return repr(self)

    def prepare_data(self) -> None:
        """Load the data in one process per node first, so that the others find it cached."""
        is_fast = self.trainer is not None and bool(self.trainer.fast_dev_run)  # type: ignore[attr-defined]
        if self._private is None or is_fast != self._is_fast:
            self._load(at_most=64 if is_fast else None)
            self._is_fast = is_fast

    def setup(self, stage: str | None = None) -> None:
        """Load and split the data, once, and move it to the Trainer's device."""
        self.prepare_data()
        if self.trainer is not None:
            self.to(self.trainer.strategy.root_device)

    def _load(self, at_most: int | None) -> None:
        """Load the data, ``at_most`` so many samples of each client and data set."""
        memory = self._choose_memory()
        self._fetch_missing()
        private = PrivateData.load(self, memory)
        key = machine_key()
        public_fingerprints = {}
        self._public = None
        self.shared_rows = 0  # auxiliary samples that are also private training samples
        if self.auxiliary is not None and "auxiliary" in self.held_parts:
            inputs = self.auxiliary.auxiliary()
            if memory != "device":
                inputs = keep_in_host(inputs)
            inputs = select(inputs, slice(at_most))
            seed = derive_seed(self.seed, holdings.PUBLIC_SPLIT)
            fractions = self.negative_fraction, self.distill_fraction
            self._public = PublicData.split(inputs, *fractions, seed)
            self.shared_rows = private.check_public(inputs, key)
            public_fingerprints["auxiliary"] = tensor_digest(inputs)  # without a key
        private = private.split(self)
        if at_most is not None:
            private = private.shorten(at_most)
        self.fingerprints = private.fingerprints(key) | public_fingerprints
        self.num_clients = len(private.clients) or self.num_clients
        self._private = private

    def _sources(self) -> list[Source]:
        return [source for source in (self.private, self.auxiliary) if source is not None]

    def _fetch_missing(self) -> None:
        """Download what is missing of the parts that are to be loaded, or raise."""
        for source in self._sources():
            if self.download is not None:
                source.download = self.download
        downloads = self.private.downloads([p for p in self.held_parts if p != "auxiliary"])
        if self.auxiliary is not None and "auxiliary" in self.held_parts:
            downloads += self.auxiliary.downloads(["auxiliary"])
        fetch_missing(downloads)

    def _choose_memory(self) -> Memory:
        """Return where images stay, and set ``on_disk`` of the sources."""
        memory = self.memory
        if memory is None:
            size = sum(source.image_bytes() for source in self._sources())
            device = torch.device("cpu")
            processes = 1
            if self.trainer is not None:
                device = self.trainer.strategy.root_device
                processes = self.trainer.num_devices
            memory = choose_memory(size, device, processes)
        for source in self._sources():
            source.on_disk = memory == "disk"
        return memory

    def to(self, device: torch.device | str) -> "FederatedDataModule":
        """Move all data to a device, as ``setup`` does under a Trainer."""
        self._private = self._loaded().to(device)
        if self._public is not None:
            self._public = self._public.to(device)
        self.__dict__.pop("sample_weights", None)  # of the former data or device
        return self

    def _loaded(self) -> PrivateData:
        if self._private is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._private

    def _train(self) -> Examples:
        train = self._loaded().train
        if train is None:
            raise DataError("the server has no private data: they are at the sites")
        return train

    def _auxiliary(self) -> PublicData:
        self._loaded()
        if self._public is None:
            raise DataError("this federation has no auxiliary data: set data.auxiliary")
        return self._public

    def settings(self) -> dict[str, Any]:
        """Return all settings that determine the data of each client, as plain values."""
        contents = dict(self.fingerprints)
        settings: dict[str, Any] = {
            "private": type(self.private).__name__,
            "auxiliary": None if self.auxiliary is None else type(self.auxiliary).__name__,
            "num_clients": self.num_clients,
            "alpha": None if self.has_given_clients or self.split == "shards" else self.alpha,
        }
        if self.split != "equal" and not self.has_given_clients:
            settings["split"] = self.split
        if self.at_sites:
            settings |= {"holds": self.holds, "classes": list(self.classes)}
        settings |= {"negatives": self.negative_fraction, "seed": self.seed, "contents": contents}
        if self.distill_fraction != 1:
            settings["distill_fraction"] = self.distill_fraction
        if self.validation_fraction:  # those records are in the fingerprint of the private data
            del contents["validation"]
        if self.validation_examples is not None:
            settings["validation"] = self.validation_fraction or "given"
        return settings

    def release_settings(self) -> dict[str, Any]:
        """Return the settings that determine what clients release: no test data, no D_distill.

        A held-out fraction is among them, as it changes D_i; given validation data are not.
        """
        settings = self.settings()
        settings["contents"].pop("test", None)
        settings.pop("distill_fraction", None)
        if not self.validation_fraction:
            settings.pop("validation", None)
            settings["contents"].pop("validation", None)
        return settings

    def client_fingerprints(self) -> list[str]:
        """Return a keyed hash of the inputs and labels of each client."""
        clients = map(self.client, range(self.num_clients))
        return [keyed_fingerprint(machine_key(), x.inputs, x.targets) for x in clients]

    @property
    def data_name(self) -> str:
        """The names of the private and the auxiliary data, such as "CIFAR10 + STL10"."""
        names = [self.private_name]
        if self.auxiliary is not None:
            names.append(self.auxiliary.data_name)
        return " + ".join(names)

    @property
    def private_name(self) -> str:
        """What the private data are called."""
        return self.name or self.private.data_name

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return (self._loaded().train or self.test_examples).classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) for images, (L,) for texts."""
        return tuple(self.all_inputs[0].shape[1:])

    @property
    def input_format(self) -> dict[str, str | int]:
        """See ``Source.input_format``."""
        return self.private.input_format

    @property
    def all_inputs(self) -> list[Inputs]:
        """The inputs of the private data (training, test, validation) and the auxiliary data."""
        inputs = [examples.inputs for examples in self._loaded().parts.values()]
        if self._public is not None:
            inputs.append(self._public.inputs)
        return inputs

    def check_model(self, model: nn.Module) -> None:
        """Raise a ValueError or a DataError if the model cannot read, or misreads, the inputs."""
        for inputs in self.all_inputs:
            # any byte is a valid pixel: one image is enough
            checked = [inputs[:1]] if inputs.dtype == torch.uint8 else chunks(inputs)
            for chunk in checked:
                model.check_inputs(chunk)  # type: ignore[operator]
        for source in self._sources():
            source.check_model(model)

    @property
    def client_indices(self) -> tuple[Tensor, ...]:
        """For each client the positions of its samples in the private training data."""
        return self._loaded().clients

    @property
    def held_parts(self) -> tuple[str, ...]:
        """Which of "train", "test" and "auxiliary" are here."""
        return holdings.PARTS[self.holds]

    @property
    def at_sites(self) -> bool:
        """Whether the clients are real sites: here are the server's data, or those of one site."""
        return self.holds is not None

    @property
    def has_given_clients(self) -> bool:
        """Whether the data name their clients or are at sites: there is no Dirichlet split."""
        return self.at_sites or self._train().clients is not None

    @property
    def client_names(self) -> list[str]:
        """The name of each client; "client 0", "client 1" ... for a Dirichlet split."""
        return self.site_names or self._loaded().client_names

    @property
    def client_sizes(self) -> list[int]:
        """|D_i| of each client; at the server 0 for a site that has not answered yet."""
        if "train" not in self.held_parts:
            return [self.site_sizes.get(client, 0) for client in range(self.num_clients)]
        return [len(indices) for indices in self.client_indices]

    def client(self, index: int) -> Examples:
        """Return D_i, a copy of the private data of one client."""
        train = self._train()
        where = self.client_indices[index].to(train.inputs.device)
        return Examples(select(train.inputs, where), train.targets[where], train.classes)

    def class_counts(self) -> NDArray[np.int64]:
        """Return the number of samples of each class in each D_i, shape (n, C)."""
        targets = self._train().targets.cpu()
        size = len(self.classes)
        counts = [torch.bincount(targets[rows], minlength=size) for rows in self.client_indices]
        return torch.stack(counts).numpy()

    @property
    def has_auxiliary(self) -> bool:
        """Whether the auxiliary data are here: not at a site, nor in methods without any."""
        return self._public is not None

    @property
    def auxiliary_inputs(self) -> Inputs:
        """D_aux."""
        return self._auxiliary().inputs

    @property
    def negative_inputs(self) -> Inputs:
        """D^-, the public data that a scorer compares a client's data with."""
        return self._auxiliary().negatives

    @property
    def distill_inputs(self) -> Inputs:
        """D_distill, the public data on which the students are distilled."""
        return self._auxiliary().distill

    @property
    def auxiliary_rows(self) -> dict[str, Tensor]:
        """Where the samples of D^- (``negatives``) and D_distill (``distill``) are in D_aux."""
        return self._auxiliary().rows

    @property
    def test_examples(self) -> Examples:
        """The test data; their ``clients``, if any, index their own ``client_names``."""
        test = self._loaded().parts.get("test")
        if test is None:
            raise DataError("a site has no test data: they are at the server")
        return test

    @property
    def validation_examples(self) -> Examples | None:
        """The validation data, held out at the clients or given; None if there are none."""
        return self._loaded().parts.get("validation")

    @property
    def evaluation_examples(self) -> Examples:
        """The data to measure rounds on: the validation data or, without any, the test data."""
        return self.validation_examples or self.test_examples

    @property
    def voting_examples(self) -> Examples:
        """The data by which clients vote: the validation data or, without any, D_1 ... D_n."""
        if self.validation_examples is not None:
            return self.validation_examples
        train = self._train()
        if self.at_sites or sum(self.client_sizes) == len(train):
            return train
        return train.take(torch.cat(self.client_indices))  # of a fast_dev_run

    def client_batches(
        self,
        index: int,
        batch_size: int = 32,
        seed: int = 0,
        balanced: bool = False,
        **options: Any,
    ) -> TensorBatches:
        """Return shuffled batches (inputs, labels) of a client; ``options`` are of TensorBatches.

        If ``balanced``, they have a third tensor, the ``sample_weights``.
        """
        train = self._train()
        subset = self.client_indices[index]
        options |= self._shuffled(batch_size, len(subset), holdings.CLIENT, index, seed)
        weights = (self.sample_weights,) if balanced else ()
        return TensorBatches(train.inputs, train.targets, *weights, subset=subset, **options)

    @cached_property
    def sample_weights(self) -> Tensor:
        """For each training sample the weight that balances the classes of its client."""
        targets = self._train().targets
        labels = targets.cpu()
        weights = torch.ones(len(labels))  # of samples that are held out
        for rows in self.client_indices:
            weights[rows] = balanced_weights(labels[rows])
        return weights.to(targets.device)

    def distill_batches(
        self, targets: Tensor, batch_size: int, seed: int = 0, **options: Any
    ) -> TensorBatches:
        """Return shuffled batches of D_distill with soft labels."""
        options |= self._shuffled(batch_size, len(targets), holdings.DISTILL, seed)
        return TensorBatches(self.distill_inputs, targets, **options)

    def pretrain_batches(
        self, batch_size: int = 512, seed: int = 0, targets: Tensor | None = None
    ) -> TensorBatches:
        """Return shuffled batches of D_aux, of 2 samples or more, with the targets of each."""
        check_unit_range(self.auxiliary_inputs, "images to learn h_0 from by SimCLR")
        options = self._shuffled(batch_size, 2, holdings.PRETRAIN, seed)
        others = () if targets is None else (targets,)
        return TensorBatches(self.auxiliary_inputs, *others, **options)

    def _shuffled(self, batch_size: int, count: int, *purpose: int) -> dict[str, Any]:
        """Return options of TensorBatches; a batch has 1 sample only if there are no others."""
        seed = derive_seed(self.seed, *purpose)
        return {"batch_size": batch_size, "shuffle": True, "seed": seed, "smallest": min(2, count)}

    def train_dataloader(self) -> list[int]:
        """Return one dummy batch: an epoch of a federation is one round."""
        return [0]

    def val_dataloader(self) -> TensorBatches:
        """Return the validation data or, without any, the test data, in order."""
        return _in_order(self.evaluation_examples)

    def test_dataloader(self) -> TensorBatches:
        """Return the test data, in order."""
        return _in_order(self.test_examples)

    predict_dataloader = test_dataloader


def _in_order(examples: Examples) -> TensorBatches:
    # five equal batches of 10,000 test images: cuDNN benchmarks its kernels for each size anew
    size = fit_batch_size(2000, examples.inputs)
    return TensorBatches(examples.inputs, examples.targets, batch_size=size)
