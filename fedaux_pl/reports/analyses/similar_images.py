"""Figs. 15 and 16 of the paper: public images of the highest scores and private ones nearby."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn.functional import normalize

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.arrays import check_images, clipped
from fedaux_pl.callbacks.figures.top_images import picture_of
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.cli.parser import parse
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.preparation import create_extractor
from fedaux_pl.reports.items import FigureItem, Item, TableItem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_QUIET = ("--trainer.logger", "false", "--trainer.enable_checkpointing", "false")
_CHUNK = 4096  # public images at a time
_COLUMNS = 2  # of clients, as in the paper


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
    """Finds the rows with the largest cosine similarity to each query.

    Args:
        queries: Shape (Q, d).
        features: Shape (N, d).
        count: K, at most N.

    Returns:
        The similarities and the positions of the rows, nearest first, both (Q, K).

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
        >>> nearest(torch.tensor([[0.0, 1.0]]), rows, count=2)[1]
        tensor([[1, 2]])
    """
    similarities = normalize(queries.double(), dim=1) @ normalize(features.double(), dim=1).T
    found = similarities.sort(dim=1, descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]


class FindNeighborhoods(FederationCallback):
    """Finds the neighborhoods of some clients after the preparation, and runs no round.

    Args:
        clients: The clients' ids.
        images: The public images of each client.
        neighbors: The private images beside each of them.
    """

    def __init__(self, clients: Sequence[int], images: int, neighbors: int) -> None:
        super().__init__()
        self.clients = clients
        self.images = images
        self.neighbors = neighbors
        self.found: list[Neighborhood] = []

    def on_federation_prepared(self, trainer: pl.Trainer, federation: Any) -> None:
        """Finds them, on the device of the Trainer."""
        trainer.fit_loop.max_epochs = 0  # no rounds
        data = federation.data
        check_images(data.distill_inputs, len(data.distill_inputs))
        public_features = {}
        for i in self.clients:
            architecture = federation.architectures[i]
            h0 = create_extractor(federation.students[architecture], federation.h0[architecture])
            if architecture not in public_features:
                public_features[architecture] = predict_features(h0, data.distill_inputs)
            own, public = data.client(i), public_features[architecture]
            own_features = predict_features(h0, own.inputs)
            scores = federation.scores["distill"][i]
            top = scores.sort(descending=True, stable=True).indices[: self.images]
            similarities, positions = nearest(public[top], own_features, self.neighbors)
            closest = torch.cat(
                [nearest(part, own_features, 1)[0] for part in torch.split(public, _CHUNK)]
            )
            main = data.classes[int(data.class_counts()[i].argmax())]
            self.found.append(
                Neighborhood(
                    name=f"{data.client_names[i]} (mainly {main})",
                    top=top.cpu(),
                    scores=scores[top].cpu(),
                    public=data.distill_inputs[top].cpu(),
                    neighbors=own.inputs[positions].cpu(),
                    similarities=similarities.cpu(),
                    typical=float(closest.mean()),
                )
            )


def similar_images(
    base: Sequence[str], *, clients: list[int], images: int = 5, neighbors: int = 4
) -> list[Item]:
    """Draws the public images of the highest scores beside their nearest private images.

    The federation is prepared, with h_0 from the cache if it is there; no round is run.

    Args:
        base: The arguments of ``fit``, of a method with scores.
        clients: The ids of the clients to show.
        images: The public images of each client.
        neighbors: The private images beside each of them.
    """
    if not clients or min(images, neighbors) < 1:
        raise ConfigurationError(
            "clients must name at least one client, and images and neighbors be at least 1, but "
            f"they are {clients}, {images} and {neighbors}"
        )
    cli = parse("report", [*base, *_QUIET])
    federation: Federation = cli.model
    _check(federation, clients)
    if cli.trainer.world_size > 1:
        raise ConfigurationError(
            f"this analysis runs in one process, but trainer.devices and num_nodes give "
            f"{cli.trainer.world_size}: leave them out"
        )
    finder = FindNeighborhoods(clients, images, neighbors)
    callbacks: list[pl.Callback] = cli.trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, FederationReport):
            callback.images = False  # figures of a run
    callbacks.append(finder)
    try:
        cli.trainer.fit(federation, datamodule=cli.datamodule)
    except (MisconfigurationException, ValueError) as error:
        raise ConfigurationError(str(error)) from error
    budget = federation.algorithm.scoring.budget  # type: ignore[union-attr]
    noise = "without noise, NOT private"
    if budget.epsilon is not None:
        noise = f"with the noise of ({budget.epsilon:g}, {budget.delta:g})-privacy"
    auxiliary = type(cli.datamodule.auxiliary).__name__
    private = type(cli.datamodule.private).__name__
    caption = (
        f"For each client, the {images} images of D_distill ({auxiliary}, public) with its highest "
        f"scores, {noise}, and beside each the {neighbors} nearest images of the client's own data "
        f"({private}, private) by cosine similarity in h_0. The server knows the scores, and "
        "with them the images at the left. The images at the right are private, and shown for "
        "this study only: publishing them is NOT private, whatever noise the scores have."
    )
    if budget.epsilon is not None:
        caption += " The noise comes from the seed of the run: a simulation."
    return [FigureItem("similar_images", caption, draw(finder.found, noise)), _table(finder.found)]


def _check(federation: Federation, clients: Sequence[int]) -> None:
    algorithm, count = federation.algorithm, len(federation.architectures)
    if algorithm.scoring is None:
        raise ConfigurationError(
            f"base must be a method with scores, such as FedAUX, but is {algorithm.name}"
        )
    if algorithm.secret_noise:
        raise ConfigurationError(
            "this analysis shows private images, and with secret_noise it would also spend the "
            "clients' privacy: set model.algorithm.secret_noise to false"
        )
    if wrong := [i for i in clients if not 0 <= i < count]:
        raise ConfigurationError(
            f"clients must be ids from 0 to {count - 1}, but there is {wrong[0]}"
        )


def draw(found: Sequence[Neighborhood], noise: str) -> "Figure":
    """Draws a block of rows for each client: a public image, and its private neighbors."""
    shown, beside = found[0].neighbors.shape[:2]
    height, width = found[0].public.shape[-2:]
    # One unit of the axes is an inch.
    scale = clipped(3.2 / (beside + 1), 0.4, 0.85) / max(height, width)
    wide, tall, space = width * scale, height * scale, 0.06
    gap, caption = 0.28, style.line_height(style.SMALL_TICK_SIZE)
    head = 2 * style.line_height(style.LABEL_SIZE) + 0.1
    block = (
        wide + gap + beside * (wide + space) - space + 0.06,
        head + shown * (tall + caption + space),
    )
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    plot = columns * (block[0] + 0.45) - 0.45, rows * (block[1] + 0.2) - 0.2
    figure, axes = style.canvas(
        plot=plot,
        left=0.05,
        right=0.1,
        bottom=0.1,
        title="Public images with the highest scores, and the nearest private ones",
        note=f"Scores {noise}. Below the images: the score s, and the cosine similarity in h_0",
    )
    for index, client in enumerate(found):
        x = (index % columns) * (block[0] + 0.45)
        y = (index // columns) * (block[1] + 0.2)
        bold: dict[str, Any] = {"fontsize": style.LABEL_SIZE, "fontweight": "bold"}
        axes.text(x, y, client.name, va="top", color=style.INK, parse_math=False, **bold)
        kind: dict[str, Any] = {"va": "top", "color": style.MUTED, "fontsize": style.TICK_SIZE}
        line = y + style.line_height(style.LABEL_SIZE) + 0.02
        axes.text(x, line, "public", **kind)
        right = x + wide + gap
        axes.text(right, line, "private: the client's nearest images", **kind)
        for k in range(len(client.top)):
            upper = y + head + k * (tall + caption + space)
            box = (wide, tall)
            value = float(client.scores[k])
            score = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            _image(axes, picture_of(client.public, k), (x, upper), box, score)
            for j in range(client.neighbors.shape[1]):
                place = (right + j * (wide + space), upper)
                near = f"{client.similarities[k, j]:.2f}"
                _image(axes, picture_of(client.neighbors[k], j), place, box, near)
        edge = x + wide + gap / 2
        axes.vlines(edge, line, y + block[1] - space, colors=style.NO_DATA, linewidth=1)
    axes.set(xlim=(0, plot[0]), ylim=(plot[1], 0), aspect="auto")
    axes.set_axis_off()
    return figure


def _image(
    axes: "Axes", picture: Any, place: tuple[float, float], box: tuple[float, float], text: str
) -> None:
    left, upper = place
    extent = (left, left + box[0], upper + box[1], upper)
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
    look: dict[str, Any] = {"ha": "center", "va": "top", "color": style.MUTED}
    size = style.SMALL_TICK_SIZE
    axes.text(left + box[0] / 2, upper + box[1] + 0.01, text, fontsize=size, **look)


def _table(found: Sequence[Neighborhood]) -> TableItem:
    header = [["client", "images of the highest scores", "all of D_distill"]]
    rows = [
        [client.name, f"{client.similarities[:, 0].mean():.3f}", f"{client.typical:.3f}"]
        for client in found
    ]
    means = [
        sum(float(client.similarities[:, 0].mean()) for client in found) / len(found),
        sum(client.typical for client in found) / len(found),
    ]
    rows.append(["mean", *(f"{mean:.3f}" for mean in means)])
    caption = (
        "Mean cosine similarity in h_0 of public images to their nearest image of the client: what "
        "high scores tell about the client's data beyond any public image."
    )
    return TableItem("similarities", caption, header, rows)
