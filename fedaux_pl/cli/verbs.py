"""The verbs of the command line; each takes the arguments after it."""

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.exceptions import SIGTERMException

from fedaux_pl.benchmark import format_table, summarize
from fedaux_pl.cli import prediction
from fedaux_pl.cli.entry import TERMINATED
from fedaux_pl.cli.export import export
from fedaux_pl.engine.checkpoints import find_tested
from fedaux_pl.errors import ConfigurationError, FedauxError
from fedaux_pl.files import write_json_atomically
from fedaux_pl.runs.parser import FederationCLI, FederationParser, parse, parse_benchmark
from fedaux_pl.runs.run_folder import RunLogger, folder_of
from fedaux_pl.sites import connect

__all__ = ["benchmark", "export", "fit", "parse", "predict", "pretrain", "test", "validate"]


def fit(args: Sequence[str]) -> FederationCLI:
    """Runs or resumes a federation."""
    cli = parse("fit", args)
    with _over_sites(cli):
        _run(cli, cli.trainer.fit)
    federation = cli.model
    if not federation.history or cli.trainer.interrupted:
        return cli
    outcome = f"{federation.algorithm.name} after {_rounds(len(federation.history))}: "
    outcome += _describe_rounds(federation.history)
    if cli.best is not None and cli.best.best_model_path and cli.trainer.limit_test_batches:
        cli.checkpoint = Path(cli.best.best_model_path)
        _run(cli, cli.trainer.test, verbose=False)
        accuracy = float(cli.trainer.callback_metrics["accuracy"])
        outcome += (
            f"\nTest accuracy of best.ckpt, of round {len(federation.history)}: {accuracy:.1%}"
        )
    if cli.trainer.is_global_zero:
        print(outcome)
        if cli.trainer.fast_dev_run:  # type: ignore[attr-defined]
            print("fast_dev_run: a few samples, and nothing was written")
            return cli
        print(f"Results and checkpoint: {folder_of(cli.trainer)}")
        if any(isinstance(logger, RunLogger) for logger in cli.trainer.loggers):
            print(f"TensorBoard: tensorboard --logdir {cli.trainer.default_root_dir}")
    return cli


def _describe_rounds(history: Sequence[Mapping[str, float]]) -> str:
    """The accuracy after the last round, and the best, with the data that it was measured on."""
    for name, data in (("val/accuracy", "validation"), ("accuracy", "test")):
        if measured := [entry[name] for entry in history if name in entry]:
            kind = "validation accuracy" if data == "validation" else "accuracy"
            best = f"best over rounds on the {data} data {max(measured):.1%}"
            return f"{kind} {measured[-1]:.1%} ({best})"
    return "accuracy not measured"


def validate(args: Sequence[str]) -> FederationCLI:
    """Measures the accuracy of a checkpoint on the validation data, if any, or the test data."""
    return _evaluate("validate", args)


def test(args: Sequence[str]) -> FederationCLI:
    """Measures the accuracy of a checkpoint on the test data."""
    return _evaluate("test", args)


def _evaluate(verb: str, args: Sequence[str]) -> FederationCLI:
    cli = parse(verb, args) if args else None
    if cli is None or cli.checkpoint is None:
        raise ConfigurationError(
            f"{verb} needs the checkpoint of a run: add --ckpt_path last, or a path"
        )
    limit = "limit_val_batches" if verb == "validate" else "limit_test_batches"
    if not getattr(cli.trainer, limit):
        raise ConfigurationError(f"{verb} measures nothing with trainer.{limit} 0: leave it out")
    _run(cli, getattr(cli.trainer, verb), verbose=False)
    if cli.trainer.is_global_zero:
        rounds, metrics = len(cli.model.history), cli.trainer.callback_metrics
        kind = "val/accuracy" if "val/accuracy" in metrics else "accuracy"
        each = [f"{name} {float(metrics[f'{kind}/{name}']):.2%}" for name in cli.model.clients]
        print(
            f"{cli.model.algorithm.name} after {_rounds(rounds)}: "
            f"{kind.replace('val/', 'validation ')} {float(metrics[kind]):.2%}"
            + (f" ({', '.join(each)})" if each[1:] else "")
        )
    return cli


def pretrain(args: Sequence[str]) -> FederationCLI:
    """Pre-trains h_0 of every architecture and caches it for ``fit``."""
    cli = parse("pretrain", args)
    if not cli.model.algorithm.pretrained:
        raise ConfigurationError(
            f"{cli.model.algorithm.name} starts from random weights and needs no pre-training: "
            "set model.algorithm.pretrained to true, or choose FedAUX"
        )
    cli.model.in_place_of_rounds = cli.model.measure_h0
    _run(cli, cli.trainer.fit)
    if cli.trainer.is_global_zero:
        for name, accuracy in cli.model.h0_accuracy.items():
            print(f"h_0 of {name}: kNN accuracy {accuracy:.1%}")
        print(f"Cached in {Path(cli.trainer.default_root_dir) / 'cache'}, where fit finds it")
    return cli


def benchmark(args: Sequence[str]) -> dict[str, Any]:
    """Measures a few rounds stage by stage; leaves logs and cache unchanged."""
    cli = parse_benchmark(args)
    cli.datamodule.pretraining_steps = cli.config.pretraining_steps
    with cli.scratch:
        _run(cli, cli.trainer.fit)
    summary = summarize(cli.model, cli.clock, cli.config.warmup, args)
    write_json_atomically(cli.output, summary)
    print(format_table(summary))
    print(f"Written to {cli.output}")
    return summary


def predict(args: Sequence[str]) -> Path:
    """Writes class probabilities for image files, folders or an npz file, or a file of texts."""
    parser = FederationParser(prog="fedaux-pl predict", description=str(predict.__doc__))
    add = parser.add_argument
    about = "The folder of a run, or 'last' for the newest: its best.ckpt, if any; or a checkpoint."
    add("--ckpt_path", type=str, required=True, help=about)
    root = ("--root", "--trainer.default_root_dir")  # the latter as in fit
    add(*root, type=Path, default=Path("logs"), help="The folder to search with 'last'.")
    about = "Image files and folders of them, or an npz file."
    add("--images", type=Path, nargs="+", default=None, metavar="PATH", help=about)
    add("--key", type=str, default="train_x", help="The array of the npz file.")
    add("--texts", type=Path | None, default=None, help="A csv, tsv, jsonl or txt file of texts.")
    add("--column", type=str, default="text", help="Its text column; several with commas.")
    add("--output", type=Path, default=Path("predictions.csv"), help="The csv file to write.")
    options = parser.parse_args(list(args))
    if (options.images is None) == (options.texts is None):
        parser.error("give either --images PATH or --texts FILE")
    checkpoint = find_tested(options.ckpt_path, options.root)
    if options.texts is not None:
        columns = options.column.split(",")
        return prediction.predict_texts(checkpoint, options.texts, options.output, columns)
    return prediction.predict_images(checkpoint, options.images, options.output, options.key)


def _over_sites(cli: FederationCLI) -> AbstractContextManager[None]:
    """Connects the run with its sites, if it has any."""
    if (sites := cli.config_init.sites) is None:
        return nullcontext()
    root = Path(cli.trainer.default_root_dir)
    return connect(cli.model, cli.datamodule, sites, root)


def _run(cli: FederationCLI, run: Callable[..., Any], **options: Any) -> None:
    """Runs a method of the Trainer; a refused setting becomes a message without traceback."""
    options |= {"datamodule": cli.datamodule, "ckpt_path": cli.checkpoint, "weights_only": True}
    try:
        run(cli.model, **options)
    except SIGTERMException as ended:  # by which Lightning ends a job of SLURM, without a status
        raise SystemExit(TERMINATED) from ended
    except MisconfigurationException as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        root = Path(cli.trainer.default_root_dir).absolute()
        if isinstance(error, FedauxError) or not _is_about(root, error):
            raise
        raise OSError(
            f"{error}: nothing can be written to trainer.default_root_dir, which is {root}; make "
            "room, or choose another folder"
        ) from error
    except ValueError as error:
        if cli.model.metrics:  # within a round: rather a bug than a wrong setting
            raise
        raise ConfigurationError(str(error)) from error  # a setting that does not fit the data


def _is_about(folder: Path, error: OSError) -> bool:
    """Whether the disk is full, or the error names the folder, a part of it or one above it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if error.filename is None:
        return False
    path = Path(str(error.filename)).absolute()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"
