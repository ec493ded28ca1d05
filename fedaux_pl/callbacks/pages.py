"""The texts and charts that explain a run in TensorBoard."""

from collections.abc import Iterator
from typing import Any

from fedaux_pl.callbacks.client_results import as_markdown


def chart_layout(federation: Any) -> dict[str, dict[str, list[Any]]]:
    """Return TensorBoard's page "Custom scalars"; its tags are regular expressions."""
    algorithm = federation.algorithm
    accuracies = [r"^(val/)?accuracy$", r"^(val/)?averaged_accuracy/.*$"]
    if algorithm.distills:
        accuracies.append(r"^(val/)?(teachers|statistics)/accuracy$")
    results = {
        "accuracy: student, average, teachers": accuracies,
        "accuracy of each class": [r"^(val/)?class_accuracy/.*$"],
    }
    if federation.evaluated_clients is not None:
        of_clients = [r"^(val/)?client_accuracy/.*$", r"^(val/)?(mean|worst)_client/accuracy$"]
        results["accuracy of each client"] = of_clients
    if federation.chosen_metrics:
        results["other metrics"] = [rf"^(val/)?({'|'.join(federation.chosen_metrics)})$"]
    if federation.scores:
        results["effective teachers"] = [r"^(val/)?certainty/effective_teachers$"]
    training = {"loss of the clients": [r"^client_loss/(mean|min|max)$"]}
    if algorithm.distills:
        training["loss of the distillation"] = [r"^distillation_loss/.*$"]
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


def describe_run(federation: Any, knows_pretraining: bool) -> str:
    """Return the text "about this run" as Markdown; it says if the run has no loss of h_0."""
    algorithm, data = federation.algorithm, federation.settings()["data"]
    source, public = federation.data.private, federation.data.auxiliary
    clients = ", ".join(f"{count} with {name}" for name, count in federation.clients.items())
    split = "given"
    if data.get("alpha") is not None:
        split = f"Dirichlet, alpha = {data['alpha']:g} (small: clients hold few classes)"
    role = f"{federation.participation:.0%} of them in a round"
    if not algorithm.trains_clients:
        count = "two releases" if federation.further else "one release"
        role = f"each sends {count} and nothing else"
    rows = {
        "method": algorithm.name,
        "private data": f"{source.data_name}, {len(federation.data.classes)} classes",
        "auxiliary data": "none" if public is None else public.data_name,
        "clients": f"{clients}; {role}",
        "split over clients": split,
        "seed": federation.seed,
    }
    if (scoring := federation.scoring) is not None:  # as it was planned
        rows["what clients release"] = f"`{scoring.scorer}` of `{scoring.feature_map}`"
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


def _meanings(federation: Any) -> Iterator[tuple[str, str]]:
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
    if federation.labels and federation.scores:
        measured += ", `statistics/accuracy` that of the classifier of the class statistics"
    yield "accuracy", f"{measured}. `val/` marks validation data; without it, test data"
    yield "accuracy of each class", "the same for the samples of one class (at most 20 classes)"
    if federation.evaluated_clients is not None:
        meaning = "the same for the samples of one client, on data that name it"
        yield "accuracy of each client", meaning
    if federation.scores:
        meaning = (
            "how many equally weighted teachers would be as concentrated as the scores make them, "
            "the mean of 1 / (sum of squared weights). As many as teach, remembered ones "
            "included: the scores are nearly uniform. 1: a single client decides about each sample"
        )
        yield "effective teachers", meaning
    yield "loss", "what clients and, in methods with distillation, the server minimize"
    yield "bytes so far", "sent by all clients (up) and by the server (down), preparation included"
    yield "seconds of a round", "by its stages"


def headline(federation: Any) -> dict[str, Any]:
    """Return what people tell runs apart by; the names sort before all other settings."""
    settings = federation.settings()
    return {
        "1 method": federation.algorithm.name,
        "2 data": federation.data.private.data_name,
        "3 alpha": settings["data"].get("alpha"),
        "4 epsilon": settings["algorithm"].get("epsilon"),
        "5 seed": federation.seed,
    }
