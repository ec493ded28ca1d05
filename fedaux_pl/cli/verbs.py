"""The verbs that run a federation; each takes the arguments after it."""

import errno
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedaux_pl.benchmark import (
    MeasuredData,
    MeasuredFederation,
    RoundClock,
    format_table,
    summarize,
)
from fedaux_pl.callbacks.client_results import describe_clients, last_measured
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.errors import TERMINATED, ConfigurationError, FedauxError, counted, first_line
from fedaux_pl.federation.given_h0 import file_in
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.files import write_json_atomically
from fedaux_pl.lightning import LightningArgumentParser, MisconfigurationException, SIGTERMException
from fedaux_pl.models import save_backbone
from fedaux_pl.pretrain import LearnH0
from fedaux_pl.runs.parser import FederationCLI
from fedaux_pl.runs.run_folder import RunLogger, folder_of
from fedaux_pl.sites import connect

__all__ = ["benchmark", "fit", "pretrain", "test", "validate"]


def fit(args: Sequence[str]) -> FederationCLI:
    """Run or resume a federation."""
    cli = FederationCLI("fit", args)
    root = Path(cli.trainer.default_root_dir)
    sites = cli.config_init.sites
    with nullcontext() if sites is None else connect(cli.model, cli.datamodule, sites, root):
        _run(cli, cli.trainer.fit)
    history = cli.model.history
    if not history or cli.trainer.interrupted:
        return cli
    outcome = f"{_name(cli)}: {_describe_rounds(history)}"
    measured = last_measured(history)
    kept = ""
    if cli.best is not None and not cli.best.best_model_path:
        if cli.datamodule.validation_examples is None:
            kept = (
                "last.ckpt holds the model of the last round: no validation data chose another one"
            )
    elif cli.best is not None and cli.trainer.limit_test_batches:
        cli.checkpoint = None  # the model of the last round
        _run(cli, cli.trainer.test, verbose=False)
        cli.checkpoint = Path(cli.best.best_model_path)
        _run(cli, cli.trainer.test, verbose=False)
        measured = _measured(cli)
        best = len(cli.model.history)
        outcome += f"\nTest accuracy of best.ckpt, of round {best}: {measured['accuracy']:.1%}"
    if cli.trainer.is_global_zero:
        print(outcome)
        _print_details(cli, measured)
        if cli.trainer.fast_dev_run:  # type: ignore[attr-defined]
            print("fast_dev_run: a few samples, and nothing was written")
            return cli
        if kept:
            print(kept)
        print(f"Results and checkpoint: {folder_of(cli.trainer)}")
        if any(isinstance(logger, RunLogger) for logger in cli.trainer.loggers):
            print(f"TensorBoard: tensorboard --logdir {root}")
    return cli


def _name(cli: FederationCLI) -> str:
    return f"{cli.model.algorithm.name} after {counted(len(cli.model.history), 'round')}"


def _measured(cli: FederationCLI) -> dict[str, float]:
    return {name: float(value) for name, value in cli.trainer.callback_metrics.items()}


def _print_details(cli: FederationCLI, measured: Mapping[str, float]) -> None:
    """Print the chosen metrics and the accuracy by client, a line each, if there are any."""
    names = [name for n in cli.model.chosen_metrics for name in (n, f"val/{n}") if name in measured]
    metrics = ", ".join(f"{name} {measured[name]:.4f}" for name in names)
    for line in filter(None, [metrics, describe_clients(measured)]):
        print(line)


def _describe_rounds(history: Sequence[Mapping[str, float]]) -> str:
    """Say how accurate the last round is and the best, on validation data if there are any."""
    for name, data in (("val/accuracy", "validation"), ("accuracy", "test")):
        measured = [entry[name] for entry in history if name in entry]
        if measured:
            best = f"best over rounds on the {data} data {max(measured):.1%}"
            return f"{name.replace('val/', 'validation ')} {measured[-1]:.1%} ({best})"
    return "accuracy not measured"


def _evaluate(verb: str, limit: str, args: Sequence[str]) -> FederationCLI:
    """Measure the accuracy of a checkpoint; ``validate`` on validation data if there are any."""
    cli = FederationCLI(verb, args) if args else None
    if cli is None or cli.checkpoint is None:
        problem = f"{verb} needs the checkpoint of a run: add --ckpt_path last, or a path"
        raise ConfigurationError(problem)
    if not getattr(cli.trainer, limit):
        raise ConfigurationError(f"{verb} measures nothing with trainer.{limit} 0: leave it out")
    _run(cli, getattr(cli.trainer, verb), verbose=False)
    if cli.trainer.is_global_zero:
        metrics = _measured(cli)
        kind = "val/accuracy" if "val/accuracy" in metrics else "accuracy"
        each = [f"{name} {metrics[f'{kind}/{name}']:.2%}" for name in cli.model.clients]
        measured = f"{kind.replace('val/', 'validation ')} {metrics[kind]:.2%}"
        print(f"Checkpoint: {cli.checkpoint}")
        print(f"{_name(cli)}: {measured}" + (f" ({', '.join(each)})" if each[1:] else ""))
        _print_details(cli, metrics)
        if verb == "validate" and kind == "accuracy":
            print("note: there are no validation data: the accuracy is that on the test data")
    return cli


validate = partial(_evaluate, "validate", "limit_val_batches")
test = partial(_evaluate, "test", "limit_test_batches")


class PretrainCLI(FederationCLI):
    """The parser of ``pretrain``: that of ``fit`` with the file to write."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the output."""
        super().add_arguments_to_parser(parser)
        about = (
            "The file to write h_0 to, which --model.pretraining.h0 reads; with several "
            "architectures a folder with a file of each."
        )
        parser.add_argument("--output", type=Path | None, default=None, help=about)


def pretrain(args: Sequence[str]) -> FederationCLI:
    """Pre-train h_0 of every architecture, cache it for ``fit``, and write it to ``--output``."""
    cli = PretrainCLI("pretrain", args, model=LearnH0)
    if not cli.model.algorithm.pretrained:
        raise ConfigurationError(
            f"{cli.model.algorithm.name} starts from random weights and needs no pre-training: "
            "set model.algorithm.pretrained to true, or choose FedAUX"
        )
    _run(cli, cli.trainer.fit)
    if cli.trainer.is_global_zero:
        for name, accuracy in cli.model.accuracy.items():
            print(f"h_0 of {name}: kNN accuracy {accuracy:.1%}")
        output = cli.config_init.output
        if output is None:
            print(f"Cached in {Path(cli.trainer.default_root_dir) / 'cache'}, where fit finds it")
        else:
            students = cli.model.students
            for name, student in students.items():
                path = output if len(students) == 1 else file_in(output, name)
                save_backbone(path, student)
            print(f"{output}: give it to fit by --model.pretraining.h0 {output}")
    return cli


@dataclass(frozen=True)
class BenchmarkOptions:
    """What a benchmark needs besides the options of ``fit``.

    Args:
        rounds: The number of measured rounds.
        warmup: The number of rounds before them, which do not count.
        pretraining_steps: The maximum number of steps of a pre-training epoch.
        output: The JSON file to write; default: benchmark/benchmark.json in default_root_dir.
    """

    rounds: int = 5
    warmup: int = 2
    pretraining_steps: int = 20
    output: Path | None = None


class BenchmarkCLI(FederationCLI):
    """The parser of ``benchmark``: that of ``fit`` with the options of the measurement."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the measurement."""
        super().add_arguments_to_parser(parser)
        parser.add_class_arguments(BenchmarkOptions)

    def before_instantiate_classes(self) -> None:
        """Write all output of the run to a temporary folder."""
        for name, minimum in (("rounds", 1), ("warmup", 0), ("pretraining_steps", 1)):
            value = self.config[name]
            if value < minimum:
                self.parser.error(f"{name}: got {value}; expected at least {minimum}")
        if self.config.ckpt_path is not None:
            self.parser.error("benchmark cannot resume a run: leave out ckpt_path")
        settings = self.config.trainer
        folder = Path(settings.default_root_dir) / "benchmark"
        self.output = self.config.output or folder / "benchmark.json"
        for path in (folder, self.output.parent):
            path.mkdir(parents=True, exist_ok=True)
        # below default_root_dir, so that checkpoints are written to the same disk as in fit
        self.scratch = tempfile.TemporaryDirectory(prefix=".run-", dir=folder)
        settings.default_root_dir = self.scratch.name
        settings.max_epochs = self.config.warmup + self.config.rounds
        settings.logger = settings.logger is not False
        super().before_instantiate_classes()
        self.clock = RoundClock()
        self.trainer_defaults["callbacks"][:1] = [self.clock, FederationReport(images=False)]


def benchmark(args: Sequence[str]) -> dict[str, Any]:
    """Measure a few rounds stage by stage; leave logs and cache unchanged."""
    cli = BenchmarkCLI("benchmark", args, MeasuredData, MeasuredFederation)
    cli.datamodule.pretraining_steps = cli.config.pretraining_steps
    with cli.scratch:
        _run(cli, cli.trainer.fit)
    summary = summarize(cli.model, cli.clock, cli.config.warmup, args)
    write_json_atomically(cli.output, summary)
    print(format_table(summary))
    print(f"Written to {cli.output}")
    return summary


def _run(cli: FederationCLI, run: Callable[..., Any], **options: Any) -> None:
    """Run a method of the Trainer; a refused setting becomes a message without traceback."""
    options |= {"datamodule": cli.datamodule, "ckpt_path": cli.checkpoint, "weights_only": True}
    try:
        run(cli.model, **options)
    except SIGTERMException as ended:  # by which Lightning ends a job of SLURM, without a status
        raise SystemExit(TERMINATED) from ended
    except MisconfigurationException as error:
        raise ConfigurationError(cli.describe(error)) from error
    except FedauxError as error:
        error.args = (cli.describe(error),)
        raise
    except OSError as error:
        root = Path(cli.trainer.default_root_dir).absolute()
        if not _is_about(root, error):
            raise
        raise OSError(
            f"{error}: nothing can be written to trainer.default_root_dir, which is {root}; make "
            "room, or choose another folder"
        ) from error
    except torch.OutOfMemoryError as error:
        sizes = ". ".join(str(error).split(". ")[:2])  # what was asked for
        raise FedauxError(f"{sizes}: {_save_memory(cli)}") from error
    except torch.AcceleratorError as error:
        raise FedauxError(
            f"{first_line(error)}: no process can use CUDA after such an error; start again with "
            "--ckpt_path last, and with --model.acceleration off in case a kernel of ours fails"
        ) from error
    except ValueError as error:
        if cli.model.metrics:  # within a round: rather a bug than a wrong setting
            raise
        # a setting that does not fit the data
        raise ConfigurationError(cli.describe(error)) from error


def _save_memory(cli: FederationCLI) -> str:
    """Return the options that need less memory, of the stage that the run is in."""
    model = cli.model
    options = [] if cli.datamodule.memory in ("host", "disk") else ["--data.memory host"]
    stages: list[TrainingSettings] = [model.pretraining]
    if model.metrics:  # within a round
        stages = [model.local, model.distillation] if model.algorithm.distills else [model.local]
    options += [f"--model.{one.option}.batch_size below {one.batch_size}" for one in stages]
    if model.acceleration == "auto":  # captured steps keep their memory for the whole run
        options.append("--model.acceleration off")
    return f"these need less memory: {', '.join(options)}"


def _is_about(folder: Path, error: OSError) -> bool:
    """Return whether the disk is full, or the error names the folder, or one in or above it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    path = Path(str(error.filename)).absolute()
    named = error.filename is not None
    return named and (path.is_relative_to(folder) or folder.is_relative_to(path))
