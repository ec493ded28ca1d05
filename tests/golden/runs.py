"""Short runs of every method, whose results are stored in this folder.

A run is a command line of ``fit``, or a function for what no command line can do. Its result is
what a change of structure must not change: the weights of the server's models and the vectors that
the clients have released.
"""

import contextlib
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytorch_lightning as pl
import torch

from fedaux_pl.algorithms import FedAUX
from fedaux_pl.cli import verbs
from fedaux_pl.data import ImageFolder
from fedaux_pl.scoring import MeanScoring, Privacy
from tests import federations
from tests.command_line import without_figures
from tests.sites import loopback

CONFIGS = Path(__file__).parents[2] / "configs"
PICTURES = Path(__file__).parent / "pictures"
SAMPLED = 32
"""How many entries of each tensor are stored after round 1."""

SHORT = (
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "model.pretraining.epochs=2",
    "model.local.epochs=1",
    "model.distillation.epochs=1",
)
SMALL = (
    *SHORT,
    "model.model_options={width: 0.125}",
    "model.clients={resnet8: 6}",
    "model.participation=0.5",
)
SILOS = (
    "quickstart",
    "silos",
    *SMALL,
    "model.clients={resnet8: 4}",
    "model.participation=1.0",
    "data.private=tests.golden.sources.DigitSilos",
    "data.validation_fraction=0.1",
)
RUNS = {
    "quickstart": ("quickstart", *SMALL),
    "quickstart_private": ("quickstart_private", *SMALL),
    "text_quickstart": ("text_quickstart", *SHORT, "model.clients={encoder: 4}"),
    "mixed": (
        "quickstart",
        *SMALL,
        "model.clients={resnet8: 2, mobilenetv2: 2, shufflenet: 2}",
        "model.participation=1.0",
    ),
    "linear evaluation": ("quickstart", *SMALL, "linear_evaluation", "model.clients={resnet8: 6}"),
    "one shot": ("quickstart", *SMALL, "one_shot"),
    "silos": (*SILOS, "model.local.augmentation=null"),
    "silos with crop_flip": (*SILOS, "model.local.augmentation=crop_flip"),
    "FedDF with memory": ("quickstart", *SMALL, "methods/feddf_p", "remember"),
    "FedAUX, schedule": ("quickstart", *SMALL, "model.local.schedule=cosine"),
    "secure sums": (
        "quickstart",
        *SMALL,
        "scoring/posterior",
        "model.algorithm.privacy.epsilon=10",
        "model.algorithm.privacy.secure={}",
    ),
    "FedClassMeans, one release": (
        "quickstart",
        *SMALL,
        "methods/fedclassmeans",
        "model.algorithm.privacy.epsilon=10",
        "model.algorithm.scoring.releases=1",
    ),
    "methods/fed3r": (  # its name in version 1.0
        "quickstart",
        *SMALL,
        "methods/fedclassmeans",
        "model.algorithm.classifier=ridge",
    ),
    **{
        f"scoring/{name}": ("quickstart", *SMALL, f"scoring/{name}")
        for name in ("authors", "paper", "paper_literal", "posterior")
    },
    **{
        f"methods/{name}": ("quickstart", *SMALL, f"methods/{name}")
        for name in (
            *("centralized", "fedadam", "fedaux", "fedauxfdp", "fedavg", "fedavg_p"),
            *("fedavgm", "fedbe", "fedbe_p", "fedbn", "fedclassmeans", "fedcof", "feddf"),
            *("feddf_p", "fedprox", "fedprox_p", "scaffold"),
        )
    },
}

FROM_RANDOM_WEIGHTS = tuple(
    f"methods/{name}"
    for name in ("centralized", "fedavg", "fedavgm", "fedbe", "fedbn", "feddf", "fedprox")
)
"""The runs without pre-training whose steps do not divide by small numbers."""


@dataclass(frozen=True)
class Result:
    """What a run ends with.

    Attributes:
        first_round: Some entries of each tensor of the server's models after round 1.
        weights: The SHA-256 of the server's models at the end.
        vectors: The SHA-256 of all vectors that clients have released.
        accuracy: The accuracy of the last round, on the validation data if there are any.
    """

    first_round: dict[str, torch.Tensor]
    weights: str
    vectors: str
    accuracy: float


class _FirstRound(pl.Callback):
    """Keeps the server's models after round 1."""

    def __init__(self):
        self.weights = {}

    def on_train_epoch_end(self, trainer, federation):
        if not self.weights:
            self.weights = federations.weights(federation)


def run(name, root):
    """Runs what ``RUNS`` has under this name, in an empty folder."""
    return _fit(root, command(name, root))


def command(name, root):
    """The arguments of ``fit``: names of configurations, and settings."""
    arguments = [f"--{x}" if "=" in x else f"--config={CONFIGS / x}.yaml" for x in RUNS[name]]
    return [*arguments, f"--trainer.default_root_dir={root}"]


def run_resumed(root):
    """Run the first round of the quickstart, and resume it for the second."""
    first = _fit(root, [*command("quickstart", root), "--trainer.max_epochs=1"])
    [checkpoint] = root.glob("runs/*/checkpoints/last.ckpt")
    second = _fit(root, [*command("quickstart", root), f"--ckpt_path={checkpoint}"])
    return Result(first.first_round, second.weights, second.vectors, second.accuracy)


def run_over_sites(root):
    """FedAUX over real sites in this process."""
    federation, server_data, _ = loopback.prepare(root, _small_fedaux, federations.split(3))
    with _first_round() as first_round:
        loopback.fit(root, federation, server_data, rounds=2)
    return _result(federation, first_round)


def run_without_sites(root):
    """The same federation, simulated."""
    federation = _small_fedaux()
    with _first_round() as first_round:
        federations.fit(root, federation, 2, federations.split(3))
    return _result(federation, first_round)


def pixels():
    """The SHA-256 of each stored picture as the package reads it, by file name."""
    examples = ImageFolder(PICTURES, size=16).train()
    files = sorted(PICTURES.glob("*/*"))
    digests = [hashlib.sha256(image.numpy().tobytes()) for image in examples.inputs]
    return {path.name: digest.hexdigest() for path, digest in zip(files, digests, strict=True)}


def _small_fedaux():
    scoring = MeanScoring(dimensions=8, whitening=0.5)  # real sites cannot plan by their sizes
    method = FedAUX(scoring=scoring, privacy=Privacy(1.0))
    return federations.create(method, {"resnet8": 3})


def _fit(root, arguments):
    quiet = contextlib.redirect_stdout(io.StringIO())
    with without_figures(), quiet, _first_round() as first_round:
        cli = verbs.fit(arguments)
    return _result(cli.model, first_round)


@contextlib.contextmanager
def _first_round():
    """Give a callback to the Trainer that fits within this context."""
    callback = _FirstRound()
    fit = pl.Trainer.fit

    def fit_with_callback(trainer, *args, **options):
        trainer.callbacks.append(callback)
        fit(trainer, *args, **options)

    with mock.patch.object(pl.Trainer, "fit", fit_with_callback):
        yield callback


def _result(federation, first_round):
    weights = federations.weights(federation)
    sampled = {name: _sample(tensor) for name, tensor in first_round.weights.items()}
    vectors = {str(i): head.weight for i, head in enumerate(federation.state.all_heads)}
    entry = federation.history[-1]
    accuracy = entry["accuracy"] if "accuracy" in entry else entry["val/accuracy"]
    return Result(sampled, digest(weights), digest(vectors), accuracy)


def _sample(tensor):
    flat = tensor.detach().cpu().flatten()
    positions = np.unique(np.linspace(0, len(flat) - 1, SAMPLED).round().astype(int))
    return flat[torch.from_numpy(positions)].clone()


def digest(tensors):
    """The SHA-256 of tensors by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
