"""The verbs that read the models of a run, ``predict`` and ``export``, and their options.

It imports neither torch nor Lightning: help and refused options answer at once. Only accepted
options import what does the work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedaux_pl.cli.entry import import_packages
from fedaux_pl.runs.option_parser import TESTED, OptionParser

FORMATS = ("safetensors", "onnx")
_BatchNormOption = Literal["running", "own"]  # of engine.inference, which imports torch


def predict(args: Sequence[str]) -> Path:
    """Writes class probabilities for image files, folders or an npz file, or a file of texts."""
    parser = OptionParser(prog="fedaux-pl predict", description=str(predict.__doc__))
    _add_run_options(parser, "--ckpt_path")
    add = parser.add_argument
    about = "Image files and folders of them, or an npz file."
    add("--images", type=Path, nargs="+", default=None, metavar="PATH", help=about)
    add("--key", type=str, default="train_x", help="The array of the npz file.")
    about = "The color behind transparent images; without it, that of the run."
    add("--background", type=str, default="", metavar="COLOR", help=about)
    add("--texts", type=Path | None, default=None, help="A csv, tsv, jsonl or txt file of texts.")
    add("--column", type=str, default="text", help="Its text column; several with commas.")
    add("--output", type=Path, default=Path("predictions.csv"), help="The csv file to write.")
    _add_client_options(parser)
    options = parser.parse_args(list(args))
    if (options.images is None) == (options.texts is None):
        parser.error("give either --images PATH or --texts FILE")
    path: Path = import_packages("fedaux_pl.cli.prediction").write_predictions(options)
    return path


def export(args: Sequence[str]) -> Path:
    """Writes the models of a run as safetensors or ONNX, with a model card."""
    parser = OptionParser(prog="fedaux-pl export", description=str(export.__doc__))
    _add_run_options(parser, "run")
    add = parser.add_argument
    add("--output", type=Path, default=Path("export"), help="The folder to write.")
    add("--format", type=str, default="safetensors", help="safetensors, onnx or safetensors,onnx.")
    add("--overwrite", action="store_true", help="Replace the files of an earlier export.")
    _add_client_options(parser)
    options = parser.parse_args(list(args))
    for name in options.format.split(","):
        if name not in FORMATS:
            parser.error(f"format: got {name!r}; expected one of {', '.join(FORMATS)}")
    folder: Path = import_packages("fedaux_pl.cli.export").write_export(options)
    return folder


def _add_run_options(parser: OptionParser, name: str) -> None:
    """Add the run as the argument ``name``, the folder to search and the modules to import."""
    add = parser.add_argument
    is_required = {"required": True} if name.startswith("--") else {}  # others always are
    add(name, type=str, help=TESTED, **is_required)
    add(
        "--root",
        "--trainer.default_root_dir",  # as in fit
        type=Path,
        default=Path("logs"),
        help="The folder to search with 'last'.",
    )
    about = "The module of your own network, which is not imported otherwise; several with commas."
    add("--import", type=str, default="", metavar="MODULE", help=about)


def _add_client_options(parser: OptionParser) -> None:
    """Add the client, and the BatchNorm statistics of its model."""
    about = "The client whose own model to use; its data are those of the run's config.yaml."
    parser.add_argument("--client", type=str | None, default=None, help=about)
    about = "As in test, with --client: own or running; null for that of the run."
    name = "--model.batchnorm_statistics"
    parser.add_argument(name, type=_BatchNormOption | None, default=None, help=about)
