"""What tests of the command line share: one finished run, and one parser for wrong options."""

import contextlib
import io
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from fedaux_pl.callbacks import FederationReport
from fedaux_pl.cli.verbs import fit
from fedaux_pl.errors import FedauxError
from fedaux_pl.federation import Federation
from fedaux_pl.runs.parser import ConfigResolver
from tests.models import own_networks

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
OWN = f"{own_networks.__name__}.TinyNet"
ARGS = [
    f"--config={QUICKSTART}",
    f"--model.clients={{resnet8: 2, {OWN}: 1}}",
    f"--model.model_options={{resnet8: {{width: 0.125}}, {OWN}: {{width: 6}}}}",
    "--model.pretraining={epochs: 1, batch_size: 20}",
    "--model.local={epochs: 1, batch_size: 16}",
    "--model.distillation={epochs: 1, batch_size: 16}",
    "--data.private=tests.federations.FewDigits",
    "--data.auxiliary=tests.federations.FewDigits",
    "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
]


class FinishedRun(NamedTuple):
    """FedAUX after two rounds with two architectures on a few digits.

    Attributes:
        root: The default_root_dir.
        folder: The folder of the run.
        checkpoint: Its last.ckpt.
        printed: What fit printed.
        federation: The federation after it, in evaluation mode.
    """

    root: Path
    folder: Path
    checkpoint: Path
    printed: str
    federation: Federation


def command(verb, root, *more):
    """A command line with the settings of the run."""
    return [verb, *ARGS, f"--trainer.default_root_dir={root}", *more]


def without_figures():
    """Within this context, runs draw no figures."""
    report = partial(FederationReport, images=False)
    return mock.patch("fedaux_pl.runs.parser.FederationReport", report)


def create(root):
    """Runs it."""
    _, *args = command("fit", root)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        federation = fit(args).model.eval()
    [folder] = (root / "runs").iterdir()
    checkpoint = folder / "checkpoints" / "last.ckpt"
    return FinishedRun(root, folder, checkpoint, printed.getvalue(), federation)


resolver = cache(ConfigResolver)  # creating a parser takes longer than all that a test does with it


def refusal(args):
    """What is wrong with the options of fit; None if only a Trainer or the data refuse them."""
    try:
        resolver().check(resolver().resolve(args))
    except FedauxError as error:
        return str(error)
    return None
