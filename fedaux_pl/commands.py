"""What the verbs of the command line do."""

import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import SingleDeviceStrategy

from fedaux_pl import algorithms, prediction
from fedaux_pl import benchmark as benchmarking
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.data import FederatedDataModule, sources
from fedaux_pl.engine import AtomicCheckpointIO, ClientParallel
from fedaux_pl.engine.resuming import find_checkpoint, load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.messages import clarify

_KNOWN = {
    "model.algorithm": sorted(name for name in algorithms.__all__ if name.startswith("Fed")),
    "data.private": sorted(sources.__all__),
    "data.auxiliary": sorted(sources.__all__),
}
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
# What a value must be, where the type does not say it.
_MEANT = {
    "model.clients": "architectures with their numbers of clients, like {resnet8: 20}",
    "seed_everything": "an integer",
    "trainer.precision": f"one of {', '.join(_PRECISIONS)}",
}


class _Parser(LightningArgumentParser):
    """Says what is wrong without a page of usage, and answers --model.help and --data.help."""

    def parse_args(self, *args: Any, **options: Any) -> Any:
        """Parses, unless the options of one part are asked for: the Trainer's are very many."""
        for part in ("model", "data"):
            if args and args[0] is not None and f"--{part}.help" in args[0]:
                sections = self.format_help().split("\n\n")
                of_part = re.compile(rf"^  --{part}[ .]", re.MULTILINE)
                print("\n\n".join(section for section in sections if of_part.search(section)))
                self.exit()
        return super().parse_args(*args, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # the parser of a class within, whose parent goes on from here
            super().error(message, ex)
        print(
            f"{self.prog}: error: {clarify(message, self.prog, _KNOWN, _MEANT)}\n"
            f"(fedaux-pl --help shows the usual options, {self.prog} --help all)",
            file=sys.stderr,
        )
        raise SystemExit(2) from ex


_CLI = TypeVar("_CLI", bound="FederationCLI")


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
        if self.checkpoint is not None:
            load_checkpoint(self.checkpoint)  # a file of another kind fails here
            # It is the folder that the run goes on in, or one that was moved: both are as meant.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* is not empty")
            warnings.filterwarnings("ignore", message="The dirpath has changed")
        if settings.deterministic:  # the fastest kernel of one run is not that of the next
            settings.benchmark = False
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
        if settings.strategy == "auto" and not _one_device(settings.devices, settings.num_nodes):
            kwargs["strategy"] = ClientParallel()
        # Lightning gives a single plugin or a list, or nothing.
        plugins = settings.plugins or []
        given = plugins if isinstance(plugins, list) else [plugins]
        kwargs["plugins"] = [AtomicCheckpointIO(), *given]
        return super().instantiate_trainer(**kwargs)

    def instantiate_classes(self) -> None:
        """Reports a setting that a class refuses as a mistake of the command line."""
        try:
            super().instantiate_classes()
            _check_trainer(self.trainer)
        except (ValueError, TypeError, ImportError, MisconfigurationException) as error:
            self.parser.error(str(error))


class BenchmarkCLI(FederationCLI):
    """The parser of ``benchmark``: that of fit, and how much is measured."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds how long to measure, and where to write."""
        super().add_arguments_to_parser(parser)
        add = parser.add_argument
        add("--rounds", type=int, default=5, help="How many rounds are measured.")
        add("--warmup", type=int, default=2, help="How many rounds come before them.")
        add("--pretraining_steps", type=int, default=20, help="The most steps of its 3 epochs.")
        add(
            "--compare_plain",
            type=bool,
            default=False,
            help="Whether to do every round again as a plain PyTorch loop, and compare.",
        )
        add(
            "--output",
            type=Path | None,
            default=None,
            help="The json file to write; benchmark/benchmark.json below default_root_dir if none.",
        )

    def before_instantiate_classes(self) -> None:
        """Sends everything that a run writes to a folder that will not last."""
        for name, least in (("rounds", 1), ("warmup", 0), ("pretraining_steps", 1)):
            if (value := self.config[name]) < least:
                self.parser.error(f"{name} must be at least {least}, but is {value}")
        if self.config.ckpt_path is not None:
            self.parser.error("a benchmark starts from the beginning: leave out ckpt_path")
        settings = self.config.trainer
        folder = Path(settings.default_root_dir) / "benchmark"
        self.output = self.config.output or folder / "benchmark.json"
        for path in (folder, self.output.parent):
            path.mkdir(parents=True, exist_ok=True)
        # below the root, so that checkpoints are written to the disk that they are meant for
        self.scratch = tempfile.TemporaryDirectory(prefix=".run-", dir=folder)
        settings.default_root_dir = self.scratch.name
        settings.max_epochs = self.config.warmup + self.config.rounds
        settings.logger = settings.logger is not False
        super().before_instantiate_classes()
        self.clock = benchmarking.RoundClock(self.config.compare_plain)
        self.trainer_defaults["callbacks"].insert(0, self.clock)


def _check_trainer(trainer: pl.Trainer) -> None:
    """Refuses what a Trainer offers and a federation cannot do, before it has begun."""
    if trainer.precision not in _PRECISIONS:
        raise ValueError(
            f"trainer.precision must be one of {', '.join(_PRECISIONS)}, but is {trainer.precision}"
        )
    if not isinstance(trainer.strategy, SingleDeviceStrategy | ClientParallel):
        raise ValueError(
            "trainer.strategy must be auto, a federation's models are small enough for one device "
            f"and several devices share the clients, but is {type(trainer.strategy).__name__}"
        )
    if trainer.gradient_clip_val is not None or trainer.accumulate_grad_batches != 1:
        raise ValueError(
            "trainer.gradient_clip_val and trainer.accumulate_grad_batches do not reach the "
            "clients' training: leave them out"
        )


def parse(verb: str, args: Sequence[str]) -> FederationCLI:
    """Reads a command line and creates model, data and Trainer from it, without running anything.

    Args:
        verb: For messages.
        args: The command line after the verb.
    """
    return _parse(FederationCLI, Federation, FederatedDataModule, verb, args)


def _parse(
    cli: type[_CLI],
    federation: type[Federation],
    data: type[FederatedDataModule],
    verb: str,
    args: Sequence[str],
) -> _CLI:
    # Meant for those who pass arguments by mistake; here the verb in front is why.
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    # What Lightning and torch say about each other and about a product, at every start.
    warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_no_tip)
    return cli(
        federation,
        data,
        args=list(args),
        run=False,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        trainer_defaults={
            "default_root_dir": "logs",
            "devices": 1,
            "benchmark": True,  # cuDNN tries its kernels on the few shapes that there are
            "max_epochs": 100,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "enable_model_summary": False,
        },
        parser_class=_Parser,
        parser_kwargs={"prog": f"fedaux-pl {verb}"},
        # Measuring a run leaves the configuration that made it alone.
        save_config_callback=SaveConfigCallback if verb in ("fit", "pretrain") else None,
        save_config_kwargs={"overwrite": True},
    )


def fit(args: Sequence[str]) -> FederationCLI:
    """Runs a federation, or goes on with one."""
    cli = parse("fit", args)
    _guarded(cli, cli.trainer.fit)
    federation = cli.model
    if not federation.history or cli.trainer.interrupted:
        return cli
    folder = cli.trainer.log_dir or cli.trainer.default_root_dir  # which all processes agree on
    if cli.trainer.is_global_zero:
        measured = [entry["accuracy"] for entry in federation.history if "accuracy" in entry]
        outcome = "accuracy not measured"
        if measured:
            outcome = f"accuracy {measured[-1]:.1%} (best {max(measured):.1%})"
        print(f"{federation.algorithm.name} after {_rounds(len(federation.history))}: {outcome}")
        print(f"Results and checkpoint: {folder}")
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
    if cli.trainer.is_global_zero:
        rounds, measured = len(cli.model.history), cli.trainer.callback_metrics
        each = [f"{name} {float(measured[f'accuracy/{name}']):.2%}" for name in cli.model.clients]
        print(
            f"{cli.model.algorithm.name} after {_rounds(rounds)}: accuracy "
            f"{float(measured['accuracy']):.2%}" + (f" ({', '.join(each)})" if each[1:] else "")
        )
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
        for name, accuracy in cli.model.h0_accuracy.items():
            print(f"h_0 of {name}: kNN accuracy {accuracy:.1%}")
        print(f"Kept in {Path(cli.trainer.default_root_dir) / 'cache'}, where fit finds it")
    return cli


def benchmark(args: Sequence[str]) -> dict[str, Any]:
    """Measures a few rounds stage by stage, and leaves logs and cache alone."""
    cli = _parse(
        BenchmarkCLI,
        benchmarking.MeasuredFederation,
        benchmarking.MeasuredData,
        "benchmark",
        args,
    )
    cli.datamodule.pretraining_steps = cli.config.pretraining_steps
    with cli.scratch:
        _guarded(cli, cli.trainer.fit)
    summary = benchmarking.summarize(cli.model, cli.clock, cli.config.warmup, args)
    cli.output.write_text(json.dumps(summary, indent=2) + "\n")
    print(benchmarking.table(summary))
    print(f"Written to {cli.output}")
    return summary


def predict(args: Sequence[str]) -> Path:
    """Writes class probabilities for a folder or an npz file of images, or a file of texts."""
    parser = _Parser(prog="fedaux-pl predict", description=str(predict.__doc__))
    add = parser.add_argument
    add("--ckpt_path", type=str, required=True, help="A checkpoint; 'last' for the newest.")
    add("--root", type=Path, default=Path("logs"), help="Where 'last' is looked for.")
    add("--images", type=Path | None, default=None, help="A folder, or an npz file.")
    add("--key", type=str, default="train_x", help="The array of an npz file.")
    add("--texts", type=Path | None, default=None, help="A csv, jsonl or txt file, or such a .xz.")
    add("--column", type=str, default="text", help="Its column; several with commas between.")
    add("--output", type=Path, default=Path("predictions.csv"), help="A csv file.")
    options = parser.parse_args(list(args))
    if (options.images is None) == (options.texts is None):
        parser.error("give either images or texts: --images PATH or --texts FILE")
    checkpoint = find_checkpoint(options.ckpt_path, options.root)
    assert checkpoint is not None  # noqa: S101 - it is only where there is no ckpt_path
    if options.texts is not None:
        columns = options.column.split(",")
        return prediction.predict_texts(checkpoint, options.texts, options.output, columns)
    return prediction.predict(checkpoint, options.images, options.output, options.key)


def _guarded(cli: FederationCLI, run: Any) -> None:
    """Runs the Trainer and turns what it refuses into one clear line."""
    try:
        run(cli.model, datamodule=cli.datamodule, ckpt_path=cli.checkpoint, weights_only=True)
    except MisconfigurationException as error:
        raise ConfigurationError(str(error)) from error
    except ValueError as error:
        if cli.model._entry:  # in a round, where a wrong setting is no longer the likely reason
            raise
        raise ConfigurationError(str(error)) from error  # a setting that only the data refuse


def _version_of(checkpoint: Path | None, root: Path) -> int | None:
    """The number of the run that a checkpoint is from, if that run's folder is below root."""
    if checkpoint is None or not checkpoint.absolute().is_relative_to((root / "runs").absolute()):
        return None
    match = re.search(r"version_(\d+)", str(checkpoint.absolute().relative_to(root.absolute())))
    return int(match[1]) if match else None


def _one_device(devices: Any, num_nodes: int) -> bool:
    """Whether one is asked for; 'auto' and -1, all that there are, may come out as one as well."""
    count = len(devices) if isinstance(devices, list) else devices
    return num_nodes == 1 and count in (1, "1")


def _no_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


def _count(clients: dict[str, int]) -> int:
    return sum(clients.values())
