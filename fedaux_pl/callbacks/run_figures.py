"""The figures of a run: which ones there are, and what they show."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedaux_pl.callbacks.client_results import (
    blend_weights,
    client_accuracies,
    client_curves,
    last_measured,
)
from fedaux_pl.callbacks.figures import client_weights, counts, samples
from fedaux_pl.callbacks.figures.samples import MAX_IMAGE_ROWS, ScoredText
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.data.views import SimCLRViews
from fedaux_pl.errors import counted
from fedaux_pl.names import terminal_safe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOP_TEXTS = 3
_VIEWED = 8


def prepared_figures(federation: RunView) -> Iterator[tuple[str, "Figure"]]:
    """Yield the names and figures of a federation before its first round."""
    data = federation.data
    scores = federation.evidence.certainty
    classes = list(data.classes)
    held = class_counts(federation)
    if held is not None:
        named = data.client_names if data.has_given_clients else None
        yield "data/split", counts.partition_figure(held, classes, named)
        if scores:
            clients = (held.argmax(axis=1), classes, named)
            yield "certainty/clients", client_weights.certainty_figure(scores["distill"], *clients)
            labels = data.evaluation_examples.targets
            figure = client_weights.weight_by_class_figure(scores["evaluation"], labels, *clients)
            yield "certainty/weight_by_class", figure
    if scores and data.distill_inputs.ndim == 4:  # images
        names = _some_clients(federation)
        images: Any = data.distill_inputs  # perhaps lazy
        shown = scores["distill"][list(names)]
        figure = samples.top_images_figure(images, shown, list(names.values()))
        yield "certainty/top_images", figure
    texts = top_texts(federation)
    if texts:
        yield "certainty/top_texts", samples.top_texts_figure(texts, len(data.distill_inputs))
    if federation.algorithm.pretrained and federation.pretraining.epochs:
        inputs = data.auxiliary_inputs[:_VIEWED]
        if inputs.ndim == 4 and inputs.dtype == torch.uint8:
            make = SimCLRViews(federation.pretraining.views)
            # random numbers of its own: those of the run stay the same
            generator = torch.Generator(inputs.device).manual_seed(federation.seed)
            views = make(inputs, generator, of_each=2)
            yield "pretraining/views", samples.views_figure(inputs, views)


def client_figures(federation: RunView) -> Iterator[tuple[str, "Figure"]]:
    """Yield who took part in the rounds so far, what clients voted for, and their metrics."""
    if federation.algorithm.trains_clients:
        names = federation.data.client_names
        history = federation.history
        took_part = np.zeros((len(history), len(names)), dtype=np.int64)
        for entry, row in zip(history, took_part, strict=True):
            selected = federation.select_clients(int(entry["round"]))
            row[[client for client in selected if entry.get(f"answered/{names[client]}", 1)]] = 1
        figure = counts.participation_figure(took_part, federation.client_labels(names))
        yield "clients/participation", figure
    weights = blend_weights(federation.history)
    if weights:
        yield "clients/blend", counts.blend_figure(weights)
    rounds, names, curves = client_curves(federation.history)
    if curves:
        yield "clients/metrics", counts.client_lines_figure(rounds, names, curves)


def result_figures(federation: RunView) -> Iterator[tuple[str, "Figure"]]:
    """Yield the confusion matrices of the last evaluation of the rounds.

    There are none if nothing was evaluated, or if they are private.
    """
    measured = last_measured(federation.history)
    data = "validation data" if "val/accuracy" in measured else "test data"
    yield from _confusion_figures(federation, data, int(measured.get("round", 0)))


def test_figures(
    federation: RunView, tested: Mapping[str, float]
) -> Iterator[tuple[str, "Figure"]]:
    """Yield the same of a test, by its metrics, and the accuracy of each client on test data."""
    round_ = int(tested["round"])
    yield from _confusion_figures(federation, "test data", round_)
    names, accuracies = client_accuracies(tested)
    if names:
        note = f"{counted(len(names), 'client')}, each on its own test data, after round {round_}"
        yield "clients/test", counts.client_bars_figure(names, accuracies, note)


def _confusion_figures(
    federation: RunView, data: str, round_: int
) -> Iterator[tuple[str, "Figure"]]:
    """Yield the confusion matrices of all samples and of each client that the data name."""
    if federation.confusion is None or not federation.may_show_classes:
        return
    classes = federation.data.classes
    after = f"after round {round_}"
    figure = counts.confusion_figure(federation.confusion, classes, f"{data} {after}")
    yield "evaluation/confusion", figure
    for client, table in federation.client_confusions.items():
        name = terminal_safe(client)
        figure = counts.confusion_figure(table, classes, f"{data} of {name} {after}")
        yield f"evaluation/confusion/{client}", figure


def class_counts(federation: RunView) -> NDArray[np.int64] | None:
    """Return the samples of each class of each client, shape (n, C); None where they are private.

    A run with secret noise shows them nowhere, and over sites nobody knows them.
    """
    is_private = federation.algorithm.secret_noise or federation.data.at_sites
    return None if is_private else federation.data.class_counts()


def top_texts(federation: RunView) -> list[ScoredText]:
    """Return the texts with the highest scores of some clients; empty unless data are texts."""
    data = federation.data
    scores = federation.evidence.certainty
    text_format: dict[str, Any] = data.auxiliary.input_format if scores and data.auxiliary else {}
    if text_format.get("kind") != "text":
        return []
    tokenizer = FixedLengthTokenizer(text_format.get("tokenizer"), text_format["max_length"]).load()
    rows = []
    for i, name in _some_clients(federation).items():
        scores_of_client = scores["distill"][i].cpu()
        for k in scores_of_client.sort(descending=True, stable=True).indices[:_TOP_TEXTS].tolist():
            text = tokenizer.decode(data.distill_inputs[k].tolist(), skip_special_tokens=True)
            rows.append(ScoredText(name, float(scores_of_client[k]), " ".join(text.split())))
    return rows


def _some_clients(federation: RunView) -> dict[int, str]:
    """At most `MAX_IMAGE_ROWS` clients, named with their main class unless it is private."""
    names = federation.client_labels(federation.data.client_names)
    held = class_counts(federation)
    if held is not None:
        main = held.argmax(axis=1)
        classes = federation.data.classes
        names = [f"{name} ({classes[k]})" for name, k in zip(names, main, strict=True)]
    spaced = np.linspace(0, len(names) - 1, min(MAX_IMAGE_ROWS, len(names))).round()
    return {i: names[i] for i in spaced.astype(int).tolist()}
