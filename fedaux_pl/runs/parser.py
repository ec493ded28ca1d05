"""The parser of the verbs that run a federation, and the model, data and Trainer it creates."""

import json
import logging
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine import AtomicCheckpointIO, ClientParallel
from fedaux_pl.engine.checkpoints import (
    find_checkpoint,
    find_last,
    find_tested,
    load_checkpoint,
)
from fedaux_pl.federation import Federation
from fedaux_pl.federation.checks import PRECISION_ALIASES, PRECISIONS, check_trainer
from fedaux_pl.lightning import (
    PACKAGE,
    Callback,
    LightningArgumentParser,
    LightningCLI,
    MisconfigurationException,
    ModelCheckpoint,
    MPSAccelerator,
    ProgressBar,
    pl,
    rank_zero_only,
)
from fedaux_pl.runs.config_files import complete_configs
from fedaux_pl.runs.option_names import as_typed, with_whole_name
from fedaux_pl.runs.option_parser import TESTED, OptionParser
from fedaux_pl.runs.run_folder import RunFolder, RunLogger
from fedaux_pl.sites import Sites

ROOTS = {"model": Federation, "data": FederatedDataModule, "trainer": pl.Trainer}
"""The classes whose arguments are options, by the first part of the options."""
LINKS = {
    "model.seed": "seed_everything",
    "data.seed": "seed_everything",
    "data.num_clients": "model.clients",
}
"""Settings that another one sets."""
_MAX_SEED = 2**32 - 1  # numpy's
# The allowed values of options whose type does not describe them.
_MEANINGS = {
    "model.algorithm.privacy.secure": "{}, options of secure sums such as {colluders: 2}, or null",
    "model.clients": (
        "architectures with their numbers of clients, like {resnet8: 20} (a space follows the "
        "colon)"
    ),
    "model.metrics": "a list such as '[f1, auroc]', or a mapping of names to their options",
    "seed_everything": f"an integer from 0 to {_MAX_SEED}",
    "trainer.precision": f"one of {', '.join(PRECISIONS)}",
}
_print_failure = threading.excepthook  # Python's own, which _report_failure calls
_WRITING = ("fit", "pretrain", "benchmark")  # verbs with a folder for their output
_TRAINER_DEFAULTS = {
    "default_root_dir": "logs",
    "devices": 1,
    "benchmark": True,  # cuDNN benchmarks its kernels: there are few input shapes
    "max_epochs": 100,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}


class FederationParser(OptionParser, LightningArgumentParser):
    """The parser of verbs that run a federation."""

    roots = ROOTS
    meanings = _MEANINGS


class LastCheckpoint(ModelCheckpoint):
    """Keeps last.ckpt; Lightning tells its state by the class from that of another callback."""


class FederationCLI(LightningCLI):
    """The parser of the verbs that run a federation, and the objects that it creates."""

    parser: FederationParser
    checkpoint: Path | None = None  # that the run resumes or evaluates
    best: BestCheckpoint | None = None  # None without checkpoints

    def __init__(
        self,
        verb: str,
        args: Sequence[str],
        data: type[FederatedDataModule] = FederatedDataModule,
        model: type[Federation] = Federation,
    ) -> None:
        # Lightning uses a deprecated function of torch, and advertises a product at every start.
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`")
        logging.getLogger(f"{PACKAGE}.utilities.rank_zero").addFilter(_is_not_tip)
        threading.excepthook = _report_failure
        # For class paths in the user's folder; last, so that it hides no package. Verbs that take
        # class paths from a checkpoint (predict, export) import what --import names only.
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        super().__init__(
            model,
            data,
            args=complete_configs(args),
            run=False,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            trainer_defaults=dict(_TRAINER_DEFAULTS),
            parser_class=FederationParser,
            parser_kwargs={"prog": f"fedaux-pl {verb}", "description": None},
            # the other verbs write nothing to the folder of the run that they measure
            save_config_callback=RunFolder if verb in _WRITING else None,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add --ckpt_path and --sites; link the seed and the number of clients."""
        resumed = (
            "The folder of a run to resume, or 'last' for the newest below default_root_dir: its "
            "last.ckpt, without which fit begins a new run; or a checkpoint."
        )
        about = resumed if self.save_config_callback else TESTED
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=about)
        about = "Real sites that hold the private data; null simulates all clients in this process."
        parser.add_argument("--sites", type=Sites | None, default=None, help=about)
        for target, source in LINKS.items():
            parser.link_arguments(source, target, int if source == "seed_everything" else _total)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, and refuse values that Lightning takes for something else."""
        self.config = parser.parse_args(args)
        settings = self.config.trainer
        seed = self.config.seed_everything
        if isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
            _refuse(parser, "seed_everything", seed)
        precision = str(settings.precision or 32)
        if precision not in (*PRECISIONS, *PRECISION_ALIASES):
            _refuse(parser, "trainer.precision", precision)
        for name, rounds in (("epochs", settings.max_epochs), ("steps", settings.max_steps)):
            if rounds is not None and rounds < 1 and rounds != -1:
                parser.error(
                    f"trainer.max_{name}: got {rounds}; expected at least 1 round, or -1 for no "
                    "limit: `fedaux-pl pretrain` runs no rounds"
                )

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint and add the callbacks of every run."""
        settings = self.config.trainer
        ckpt_path = self.config.ckpt_path
        root = Path(settings.default_root_dir)
        # save_config_callback: of the verbs that write, _WRITING
        if ckpt_path == "last" and self.save_config_callback and not find_last(root):
            # a job that is requeued before its first round has the same command line
            note = f"there is no last.ckpt below {root.absolute()} to resume: a new run begins"
            rank_zero_only(print)(note)
            ckpt_path = None
        find = find_checkpoint if self.save_config_callback else find_tested
        self.checkpoint = find(ckpt_path, root)
        if self.checkpoint is not None:
            load_checkpoint(self.checkpoint)  # raises if it is not a checkpoint of a federation
            # A resumed run writes to the same folder, or to one that was moved: both are intended.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* is not empty")
            warnings.filterwarnings("ignore", message="The dirpath has changed")
        if settings.deterministic:  # the fastest kernel can differ from run to run
            settings.benchmark = False
        callbacks: list[Callback] = [FederationReport()]
        if settings.enable_checkpointing is not False:
            last = LastCheckpoint(
                filename="last",
                enable_version_counter=False,
                every_n_epochs=1,
                save_on_train_epoch_end=True,
            )
            self.best = BestCheckpoint()
            callbacks += [self.best, last]  # so that last.ckpt knows the best round so far
        self.trainer_defaults["callbacks"] = callbacks

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Create a Trainer that logs to TensorBoard in the folder of the run."""
        settings = self.config.trainer
        if settings.logger in (None, True):
            root = settings.default_root_dir
            kwargs["logger"] = RunLogger(root) if self.save_config_callback else False
        if settings.accelerator == "auto" and MPSAccelerator.is_available():
            kwargs["accelerator"] = "cpu"  # check_trainer refuses Apple's GPUs
        devices = settings.devices  # 'auto' and -1 can mean several
        count = len(devices) if isinstance(devices, list) else devices
        is_shared = settings.num_nodes != 1 or count not in (1, "1")
        if settings.strategy == "ddp":
            rank_zero_only(print)(
                "note: trainer.strategy ddp would average the clients' gradients in every step: "
                "client_parallel runs in its place"
            )
        if settings.strategy == "ddp" or (settings.strategy == "auto" and is_shared):
            kwargs["strategy"] = ClientParallel()
        given = self.config_init.trainer
        checkpoint_io = AtomicCheckpointIO(background="last.ckpt")
        kwargs["plugins"] = [checkpoint_io, *_as_list(given.plugins)]
        given_callbacks = _as_list(given.callbacks)
        has_bar = any(isinstance(callback, ProgressBar) for callback in given_callbacks)
        if settings.enable_progress_bar is not False and not has_bar:
            self.trainer_defaults["callbacks"].append(FederationProgress())
        for callback in given_callbacks:
            if isinstance(callback, BestCheckpoint) and self.best is not None:  # by another metric
                self.trainer_defaults["callbacks"].remove(self.best)
                self.best = callback
        trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.sort(key=lambda callback: not isinstance(callback, RunFolder))  # comes first
        return trainer

    def instantiate_classes(self) -> None:
        """Create all objects; a setting that a class refuses is an error of the command line."""
        try:
            super().instantiate_classes()
            check_trainer(self.trainer, self.model.clients, further=self.model.monitored_metrics)
        except (ValueError, TypeError, ImportError, MisconfigurationException) as error:
            self.parser.error(with_whole_name(str(error), self.config.as_dict()))

    def describe(self, error: Exception) -> str:
        """Return the message of an error with the names of options as they are typed."""
        message = with_whole_name(str(error), self.config.as_dict())
        return as_typed(message, self.parser.option_names())


class ConfigResolver(FederationCLI):
    """Resolves command lines of ``fit`` to all their settings; runs and seeds nothing."""

    def __init__(self) -> None:
        self._created: list[Any] = []
        super().__init__("fit", [])

    def resolve(self, args: Sequence[str]) -> dict[str, Any]:
        """Return all settings of a command line, defaults and links included, as plain values."""
        # the parent's: the one of this class, which Lightning calls, parses nothing
        super().parse_arguments(self.parser, complete_configs(args))
        text = self.parser.dump(
            self.config, "json", skip_none=False, skip_validation=True, skip_link_targets=False
        )
        settings: dict[str, Any] = json.loads(text)
        return settings

    def check(self, settings: dict[str, Any]) -> None:
        """Create model and data of the settings just resolved, so that wrong values are refused.

        Not if both were created before, but for the seed. No Trainer is created: its devices can be
        those of another machine.
        """
        without_seeds = [{**settings[name], "seed": None} for name in ("model", "data")]
        if all(created in self._created for created in without_seeds):
            return
        self._created += without_seeds
        config = Namespace(model=self.config.model, data=self.config.data)  # type: ignore[no-untyped-call]
        try:
            self.parser.instantiate_classes(config)
        except (ValueError, TypeError, ImportError) as error:
            self.parser.error(with_whole_name(str(error), settings))

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse nothing, since there is no command line yet."""
        self.config = Namespace(seed_everything=False)  # type: ignore[no-untyped-call]

    def before_instantiate_classes(self) -> None:
        """Look for no checkpoint."""

    def instantiate_classes(self) -> None:
        """Create nothing."""


def _total(clients: Mapping[str, int]) -> int:
    """Return the number of clients of all architectures."""
    return sum(clients.values())


def _refuse(parser: LightningArgumentParser, name: str, value: object) -> None:
    parser.error(f"{name}: got {str(value).lower()}; expected {_MEANINGS[name]}")


def _as_list(given: Any) -> list[Any]:
    """Return what Lightning takes as None, one object or a list."""
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def _report_failure(args: threading.ExceptHookArgs) -> None:
    """Print what a thread raised, but of TensorBoard's writer: the run raises that, too."""
    if not type(args.thread).__module__.startswith("tensorboard."):
        _print_failure(args)


def _is_not_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()
