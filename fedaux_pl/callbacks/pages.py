"""The texts and charts that explain a run in TensorBoard."""

from collections.abc import Iterator
from typing import Any

from fedaux_pl.callbacks.client_results import as_markdown
from fedaux_pl.callbacks.privacy_table import as_cells
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.names import markdown_safe
from fedaux_pl.scoring import describe_sent, first_step


def chart_layout(federation: RunView) -> dict[str, dict[str, list[Any]]]:
    """Return TensorBoard's page "Custom scalars"; its tags are regular expressions.

    A chart has the same tags in every run: of runs in one folder, TensorBoard draws charts of one
    title once only if their tags are equal.
    """
    algorithm = federation.algorithm
    results = {
        "accuracy: student, average, teachers": [
            r"^(val/)?accuracy$",
            r"^(val/)?averaged_accuracy/.*$",
            r"^(val/)?(teachers|statistics)/accuracy$",
        ],
        "accuracy of each class": [r"^(val/)?class_accuracy/.*$"],
    }
    if federation.evaluated_clients is not None:
        results["accuracy of each client"] = [
            r"^(val/)?client_accuracy/.*$",
            r"^(val/)?(mean|worst)_client/accuracy$",
        ]
    for metric in federation.chosen_metrics:
        results[metric] = [rf"^(val/)?{metric}$"]
    if federation.evidence.certainty:
        results["effective teachers"] = [r"^(val/)?certainty/effective_teachers$"]
    training = {"loss of the clients": [r"^client_loss/(mean|min|max)$"]}
    if algorithm.distills:
        training["loss of the distillation"] = [r"^distillation_loss/.*$"]
        if federation.settings()["distillation"].get("blend") == "vote":
            training["weight of the distilled model, by vote"] = [r"^blend/.*$"]
    if algorithm.pretrained:
        training["loss of the pre-training of h_0, by epoch"] = [r"^pretraining_loss/.*$"]
    costs = {
        "bytes so far": [r"^bytes/(up|down)_total$"],
        "seconds of a round, by stage": [r"^seconds/.*$"],
    }
    pages = {"1 Results": results, "2 Training": training, "3 Costs": costs}
    return {
        page: {title: ["Multiline", tags] for title, tags in charts.items()}
        for page, charts in pages.items()
    }


def describe_run(federation: RunView, knows_pretraining: bool) -> str:
    """Return the text "about this run" as Markdown; it says if the run has no loss of h_0."""
    algorithm = federation.algorithm
    auxiliary = federation.data.auxiliary
    clients = ", ".join(f"{count} with {name}" for name, count in federation.clients.items())
    alpha = federation.settings()["data"].get("alpha")
    split = "given"
    if alpha is not None:
        split = f"Dirichlet, alpha = {alpha:g} (small: clients hold few classes)"
    role = f"{federation.participation:.0%} of them in a round"
    if not algorithm.trains_clients:
        count = "one release" if len(federation.plan) == 1 else "two releases"
        role = f"each sends {count} and nothing else"
    rows = {
        "method": algorithm.name,
        "private data": f"{federation.data.private_name}, {len(federation.data.classes)} classes",
        "auxiliary data": "none" if auxiliary is None else auxiliary.data_name,
        "clients": f"{clients}; {role}",
        "split over clients": split,
        "seed": federation.seed,
    }
    if federation.plan:
        step = first_step(federation.plan)
        what = describe_sent(step.scorer.what, step.scoring.feature_map, federation.heads)
        rows["what clients release"] = f"{what}: {step.scorer} of {step.scoring.feature_map}"
    lines = [as_markdown([("setting", "value"), *rows.items()])]
    lines += ["", "**Custom scalars** has the charts of a run; the x-axis is the round.", ""]
    lines += [f"- *{title}*: {meaning}" for title, meaning in _meanings(federation)]
    if algorithm.pretrained and not knows_pretraining:
        lines.append(
            "- h_0 was not trained in this run (it came from the cache, a checkpoint or with the "
            "model): there is no loss of the pre-training"
        )
    lines += [
        "",
        "**Images** has the figures, which are also files in the run's folder. **Text** says what "
        "is private. **HParams** compares runs that have ended.",
    ]
    return "\n".join(lines)


def describe_privacy(federation: RunView) -> str:
    """Return the text "privacy" as Markdown: the table of guarantees, and a sentence for each."""
    rows = [as_cells(row) for row in federation.guarantees()]
    table = as_markdown([("what leaves a client", "guarantee", "cost (epsilon, delta)"), *rows])
    sentences = [f"- {markdown_safe(line)}" for line in federation.privacy()]
    return "\n".join([table, "", *sentences])


def _meanings(federation: RunView) -> Iterator[tuple[str, str]]:
    measured = (
        "share of correct predictions. `accuracy` is the result of a round, that of the server's "
        "model (the student; several architectures vote). `averaged_accuracy` is that of the "
        "averaged weights before distillation"
    )
    if federation.algorithm.distills:
        measured += (
            ", `teachers/accuracy` that of the clients' ensemble, from which the student learns "
            "(if only some rounds have a validation, without those remembered from the others)"
        )
    if federation.evidence.class_probabilities and federation.evidence.certainty:
        measured += ", `statistics/accuracy` that of the classifier of the class statistics"
    yield "accuracy", f"{measured}. `val/` marks validation data; without it, test data"
    yield "accuracy of each class", "the same for the samples of one class (at most 20 classes)"
    if federation.evaluated_clients is not None:
        meaning = "the same for the samples of one client, on data that name it"
        yield "accuracy of each client", meaning
    if federation.evidence.certainty:
        meaning = (
            "how many equally weighted teachers would be as concentrated as the scores make them, "
            "the mean of 1 / (sum of squared weights). As many as teach, remembered ones "
            "included: the scores are nearly uniform. 1: a single client decides about each sample"
        )
        yield "effective teachers", meaning
    yield "loss", "what clients and, in methods with distillation, the server minimize"
    yield "bytes so far", "sent by all clients (up) and by the server (down), preparation included"
    yield "seconds of a round", "by its stages"


def headline(federation: RunView) -> dict[str, Any]:
    """Return what people tell runs apart by; the names sort before all other settings."""
    settings = federation.settings()
    return {
        "1 method": federation.algorithm.name,
        "2 data": federation.data.private_name,
        "3 alpha": settings["data"].get("alpha"),
        "4 epsilon": settings["algorithm"].get("epsilon"),
        "5 seed": federation.seed,
    }
