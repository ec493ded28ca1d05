"""Figures 15 and 16: public images of the highest scores, and their nearest private neighbors.

    python paper/similar_images.py fig15     # fig16 has the noise of (0.1, 1e-5)-privacy
    python paper/similar_images.py digits_fig15     # and digits_fig16: without a download

Further options are those of fit: --config scoring/paper is the scoring of the paper's text, made
private, without noise if --model.algorithm.privacy.epsilon null follows. Only the preparation is
run; h_0 comes from logs/cache if a run has left it there. At epsilon = 0.1 the noise would hide a
client's 45 digits: digits_fig16 has epsilon = 1.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize
from torchvision.transforms.functional import to_pil_image

from fedaux_pl import FederationCallback
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.cli.report import publish
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.pretraining import create_extractor
from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import TableItem
from fedaux_pl.runs.parser import FederationCLI

CIFAR = ["--config", "fedaux_resnet8", "--config", "auxiliary/imagenet_dogs"]
DIGITS = ["--config", "quickstart"]
NO_NOISE = ["--model.algorithm.privacy.epsilon", "null"]
FIGURES = {  # the options of fit and the clients, each of which holds mainly one class
    "fig15": ([*CIFAR, *NO_NOISE], (0, 3, 15, 16)),
    "fig16": ([*CIFAR, "--model.algorithm.privacy.epsilon", "0.1"], (0, 3, 15, 16)),
    "digits_fig15": ([*DIGITS, *NO_NOISE], (0, 3, 9, 15)),
    "digits_fig16": ([*DIGITS, "--model.algorithm.privacy.epsilon", "1"], (0, 3, 9, 15)),
}
IMAGES, NEIGHBORS = 5, 4  # public images of a client, and private ones beside each
QUIET = [
    "--trainer.logger",
    "false",
    "--trainer.enable_checkpointing",
    "false",
    "--trainer.devices",
    "1",
]


@dataclass(frozen=True)
class Neighborhood:
    """The public images that a client scores highest, and the client's images nearest to them.

    Attributes:
        name: The client's name, with its most frequent class.
        top: The positions of the public images in D_distill, best first, shape (T,).
        scores: Their scores s_i(x), shape (T,).
        public: The public images, (T, C, H, W).
        neighbors: The client's nearest images, nearest first, (T, K, C, H, W).
        similarities: Their cosine similarities in h_0, (T, K).
        typical: The mean similarity of all of D_distill to their nearest image of the client.
    """

    name: str
    top: Tensor
    scores: Tensor
    public: Tensor
    neighbors: Tensor
    similarities: Tensor
    typical: float


def nearest(queries: Tensor, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest cosine similarities of queries (Q, d) to rows (N, d), and where."""
    similarities = normalize(queries.double(), dim=1) @ normalize(features.double(), dim=1).T
    found = similarities.sort(dim=1, descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]


class FindNeighborhoods(FederationCallback):
    """Finds the neighborhoods of some clients after the preparation, and runs no round."""

    def __init__(self, clients: tuple[int, ...]) -> None:
        super().__init__()
        self.clients = clients

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """Find them, on the device of the Trainer."""
        trainer.fit_loop.max_epochs = 0  # no rounds
        data = federation.data
        self.found = []
        for i in self.clients:
            name = federation.architectures[i]
            h0 = create_extractor(federation.students[name], federation.h0[name])
            own = data.client(i)
            features, public = (
                predict_features(h0, own.inputs),
                predict_features(h0, data.distill_inputs),
            )
            scores = federation.evidence.certainty["distill"][i]
            top = scores.sort(descending=True, stable=True).indices[:IMAGES]
            similarities, positions = nearest(public[top], features, NEIGHBORS)
            closest = [nearest(part, features, 1)[0] for part in public.split(4096)]
            main = data.classes[int(data.class_counts()[i].argmax())]
            self.found.append(
                Neighborhood(
                    name=f"{data.client_names[i]} (mainly {main})",
                    top=top.cpu(),
                    scores=scores[top].cpu(),
                    public=data.distill_inputs[top].cpu(),
                    neighbors=own.inputs[positions].cpu(),
                    similarities=similarities.cpu(),
                    typical=float(torch.cat(closest).mean()),
                )
            )


def similar_images(args: list[str], clients: tuple[int, ...]) -> list[FigureItem | TableItem]:
    """Draw the public images of the highest scores beside their nearest private images.

    Args:
        args: The options of fit, of a method with scores.
        clients: The ids of the clients to show.
    """
    cli = FederationCLI("report", [*args, *QUIET])
    algorithm = cli.model.algorithm
    if algorithm.release is None or algorithm.secret_noise:
        raise ConfigurationError(
            "the method must have scores and privacy.secret must be false, but got "
            f"{algorithm.name} with privacy.secret {algorithm.secret_noise}: this figure shows "
            "private images, and secret noise would also spend the clients' privacy"
        )
    finder = FindNeighborhoods(clients)
    for callback in cli.trainer.callbacks:
        if isinstance(callback, FederationReport):
            callback.images = False  # figures of a run
    cli.trainer.callbacks.append(finder)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    privacy = algorithm.release.scoring.privacy
    noise = "without noise, NOT private"
    if privacy.epsilon is not None:
        noise = f"with the noise of ({privacy.epsilon:g}, {privacy.delta:g})-privacy"
    auxiliary, private = (
        type(getattr(cli.datamodule, k)).__name__ for k in ("auxiliary", "private")
    )
    caption = (
        f"For each client, the {IMAGES} images of D_distill ({auxiliary}, public) with its "
        f"highest scores, {noise}, and beside each the {NEIGHBORS} nearest images of the client's "
        f"own data ({private}, private) by cosine similarity in h_0. The server knows the scores, "
        "and with them the images at the left. The images at the right are private, and shown "
        "for this study only: publishing them is NOT private, whatever noise the scores have."
    )
    if privacy.epsilon is not None:
        caption += " The noise comes from the seed of the run: a simulation."
    about = (
        "Mean cosine similarity in h_0 of public images to their nearest image of the client: "
        "what high scores tell about the client's data beyond any public image."
    )
    rows = [(one.name, float(one.similarities[:, 0].mean()), one.typical) for one in finder.found]
    rows.append(("mean", *(sum(row[k] for row in rows) / len(rows) for k in (1, 2))))
    texts = [[name, f"{top:.3f}", f"{typical:.3f}"] for name, top, typical in rows]
    header = ["client", "images of the highest scores", "all of D_distill"]
    return [
        FigureItem("similar_images", caption, draw(finder.found, noise)),
        TableItem("similarities", about, pd.DataFrame(texts, columns=header)),
    ]


def draw(found: list[Neighborhood], noise: str) -> Figure:
    """Draw a block of rows for each client: a public image, and its private neighbors."""
    rows = -(-len(found) // 2)
    figure = Figure(figsize=(9, 0.9 + 5.6 * rows), layout="constrained")
    figure.suptitle(
        "Public images with the highest scores (left), and the client's nearest private ones\n"
        f"Scores {noise}. Below the images: the score s, and the cosine similarity in h_0\n",
        fontsize=11,
    )
    for block, client in zip(
        figure.subfigures(rows, 2, squeeze=False, wspace=0.06).flat, found, strict=False
    ):
        block.suptitle(client.name, fontweight="bold")
        ratios = [1, 0.3, *[1] * client.neighbors.shape[1]]  # a gap after the public image
        grid = block.subplots(len(client.top), len(ratios), width_ratios=ratios, squeeze=False)
        grid[0, 0].set_title("public", fontsize=9)
        grid[0, 2].set_title("private", fontsize=9)
        for axes in grid[:, 1]:
            axes.remove()
        for k, row in enumerate(grid):
            images = [client.public[k], *client.neighbors[k]]
            score = float(client.scores[k])
            shown = f"{score:,.0f}" if score >= 100 else f"{score:.3g}"
            texts = [shown, *(f"{s:.2f}" for s in client.similarities[k])]
            for axes, image, text in zip(
                row[[0, *range(2, len(ratios))]], images, texts, strict=True
            ):
                axes.imshow(to_pil_image(image), cmap="gray", vmin=0, vmax=255)
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(text, fontsize=8, labelpad=1)
                axes.spines[:].set_visible(False)
    return figure


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title, allow_abbrev=False)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--output", type=Path, help="default: logs/reports/FIGURE")
    options, of_fit = parser.parse_known_args()
    base, shown = FIGURES[options.figure]
    items = similar_images([*base, *of_fit], shown)
    publish(options.output or Path("logs/reports") / options.figure, title, items, note=note)
