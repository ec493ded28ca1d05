"""What the verbs of the command line do."""

import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import TensorBoardLogger

from fedaux_pl import algorithms
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.data import FederatedDataModule, sources
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.prediction import predict as predict

_KNOWN = {
    "model.algorithm": sorted(set(algorithms.__all__) - {"Algorithm", "Ensemble", "Update"}),
    "data.private": sorted(sources.__all__),
    "data.auxiliary": sorted(sources.__all__),
}


class _Parser(LightningArgumentParser):
    """Says what is wrong with a command line without a page of usage before it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        for key, names in _KNOWN.items():
            if key in message and "import path" in message:
                message = f"{key} must be one of {', '.join(names)}.\n{message.strip()}"
        print(f"{self.prog}: error: {message}\n({self.prog} --help lists options)", file=sys.stderr)
        raise SystemExit(2) from ex


class FederationCLI(LightningCLI):
    """The parser of all verbs that run a federation, and what they create from it."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed for all, as many clients in the data as in the model, a checkpoint."""
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="A checkpoint to go on from; 'last' for the newest below default_root_dir.",
        )
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("model.clients", "data.num_clients", compute_fn=_count)

    def before_instantiate_classes(self) -> None:
        """Finds the checkpoint, whose run's folder the Trainer then goes on writing to."""
        settings = self.config.trainer
        self.checkpoint = find_checkpoint(self.config.ckpt_path, Path(settings.default_root_dir))
        callbacks: list[Callback] = [FederationReport()]
        if settings.enable_progress_bar is not False:
            callbacks.append(FederationProgress())
        if settings.enable_checkpointing is not False:
            callbacks.append(
                ModelCheckpoint(
                    filename="last",
                    every_n_epochs=1,
                    save_on_train_epoch_end=True,
                    enable_version_counter=False,
                )
            )
        self.trainer_defaults["callbacks"] = callbacks

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """A Trainer that logs to TensorBoard, in the folder of the run it goes on with."""
        settings = self.config.trainer
        if settings.logger in (None, True):
            version = _version_of(self.checkpoint, Path(settings.default_root_dir))
            kwargs["logger"] = TensorBoardLogger(
                settings.default_root_dir, name="runs", version=version
            )
        # Lightning gives a single plugin or a list, or nothing.
        plugins = settings.plugins or []
        given = plugins if isinstance(plugins, list) else [plugins]
        kwargs["plugins"] = [AtomicCheckpointIO(), *given]
        return super().instantiate_trainer(**kwargs)

    def instantiate_classes(self) -> None:
        """Reports a setting that a class refuses as a mistake of the command line."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, MisconfigurationException) as error:
            self.parser.error(str(error))


def parse(verb: str, args: Sequence[str]) -> FederationCLI:
    """Reads a command line and creates model, data and Trainer from it, without running anything.

    Args:
        verb: For messages.
        args: The command line after the verb.
    """
    # Meant for those who pass arguments by mistake; here the verb in front is why.
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    return FederationCLI(
        Federation,
        FederatedDataModule,
        args=list(args),
        run=False,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        trainer_defaults={
            "default_root_dir": "logs",
            "max_epochs": 100,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "enable_model_summary": False,
        },
        parser_class=_Parser,
        parser_kwargs={"prog": f"fedaux-pl {verb}"},
        save_config_kwargs={"overwrite": True},
    )


def fit(args: Sequence[str]) -> FederationCLI:
    """Runs a federation, or goes on with one."""
    cli = parse("fit", args)
    _guarded(cli, cli.trainer.fit)
    federation = cli.model
    if cli.trainer.is_global_zero and federation.history and not cli.trainer.interrupted:
        last = federation.history[-1]
        best = max(entry.get("accuracy", 0.0) for entry in federation.history)
        print(
            f"{federation.algorithm.name} after {last['round']:.0f} rounds: accuracy "
            f"{last.get('accuracy', float('nan')):.1%} (best {best:.1%})"
        )
        print(f"Results and checkpoint: {cli.trainer.log_dir or cli.trainer.default_root_dir}")
        print(f"TensorBoard: tensorboard --logdir {cli.trainer.default_root_dir}")
    return cli


def validate(args: Sequence[str]) -> FederationCLI:
    """Measures a checkpoint on the test data."""
    return _measure("validate", args)


def test(args: Sequence[str]) -> FederationCLI:
    """Measures a checkpoint on the test data."""
    return _measure("test", args)


def _measure(verb: str, args: Sequence[str]) -> FederationCLI:
    cli = parse(verb, args)
    if cli.checkpoint is None:
        raise ConfigurationError(
            f"{verb} needs the checkpoint of a run: add --ckpt_path last, or a path"
        )
    _guarded(cli, getattr(cli.trainer, verb))
    return cli


def pretrain(args: Sequence[str]) -> FederationCLI:
    """Learns h_0 of every architecture and keeps it where fit finds it."""
    cli = parse("pretrain", args)
    if not cli.model.algorithm.pretrained:
        raise ConfigurationError(
            f"{cli.model.algorithm.name} starts from random weights, there is nothing to pre-train:"
            " set model.algorithm.pretrained to true, or choose FedAUX"
        )
    cli.model.only_pretrain = True
    _guarded(cli, cli.trainer.fit)
    if cli.trainer.is_global_zero:
        for name, accuracy in cli.model.knn_accuracy().items():
            print(f"h_0 of {name}: kNN accuracy {accuracy:.1%}")
        print(f"Kept in {Path(cli.trainer.default_root_dir) / 'cache'}, where fit finds it")
    return cli


def _guarded(cli: FederationCLI, run: Any) -> None:
    """Runs the Trainer and turns what it refuses into one clear line."""
    try:
        run(cli.model, datamodule=cli.datamodule, ckpt_path=cli.checkpoint, weights_only=True)
    except MisconfigurationException as error:
        raise ConfigurationError(str(error)) from error


def find_checkpoint(ckpt_path: str | None, root: Path) -> Path | None:
    """The path of a checkpoint, or of the newest one below ``root`` for 'last'."""
    if ckpt_path is None:
        return None
    if ckpt_path != "last":
        path = Path(ckpt_path)
        if not path.is_file():
            raise ConfigurationError(f"there is no checkpoint at {path.absolute()}")
        return path
    found = sorted(root.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"there is no last.ckpt below {root.absolute()} to go on from: give its path, or leave "
            "ckpt_path out to start anew"
        )
    return found[-1]


def _version_of(checkpoint: Path | None, root: Path) -> int | None:
    """The number of the run that a checkpoint is from, if that run's folder is below root."""
    if checkpoint is None or not checkpoint.absolute().is_relative_to((root / "runs").absolute()):
        return None
    match = re.search(r"version_(\d+)", str(checkpoint.absolute().relative_to(root.absolute())))
    return int(match[1]) if match else None


def _count(clients: dict[str, int]) -> int:
    return sum(clients.values())
