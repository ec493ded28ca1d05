"""How good the averages and the teachers of a round are on labeled data."""

from torch import Tensor

from fedaux_pl.algorithms import Evidence, Round
from fedaux_pl.federation.server import Server

_SMALLEST_SUM = 1e-12  # of scores that is divided by, because a client's score can be 0


def evaluate_round(server: Server, models: Round, evidence: Evidence) -> dict[str, float]:
    """Return the accuracy of the averages before distillation, and metrics of the teachers.

    Only measured rounds are evaluated. The logits of other rounds' clients on the evaluated data
    are never computed. So, of the clients that are absent, those that took part in a measured round
    last count as teachers here. If every round is measured, these are all.
    """
    metrics = {}
    for name, state in models.averages.items():
        classes = server.predict(name, state, "evaluation").argmax(dim=1)
        metrics[f"averaged_accuracy/{name}"] = _accuracy(server, classes)
    if evidence.class_probabilities and server.algorithm.trains_clients:
        classes = evidence.class_probabilities["evaluation"].argmax(dim=1)
        metrics["statistics/accuracy"] = _accuracy(server, classes)
    if server.algorithm.distills:
        metrics |= _evaluate_teachers(server, models, evidence)
    return metrics


def _evaluate_teachers(server: Server, models: Round, evidence: Evidence) -> dict[str, float]:
    """Return how good soft labels are on labeled data, and how certain the teachers are."""
    votes: list[Tensor] = []
    teachers = server.teachers(
        models,
        evidence,
        "evaluation",
        on_prediction=lambda logits: votes.append(logits.argmax(dim=1)),
    )
    labels = server.algorithm.soft_labels(teachers).argmax(dim=1)
    counts = labels.new_tensor([sum((vote == labels).sum() for vote in votes), len(votes)])
    [(agreeing, members)] = server.run.processes.sum([counts])
    metrics = {"teachers/accuracy": _accuracy(server, labels)}
    if members:  # over real sites a round may have no answer
        metrics["teachers/agreement"] = float(agreeing / (members * len(labels)))
    if evidence.certainty and models.clients:
        certainty = evidence.certainty["distill"][models.clients]
        metrics |= {
            "certainty/mean": float(certainty.mean()),
            "certainty/min": float(certainty.min()),
            "certainty/max": float(certainty.max()),
            "certainty/effective_teachers": _effective_teachers(server, models, evidence),
        }
    return metrics


def _effective_teachers(server: Server, models: Round, evidence: Evidence) -> float:
    """Return the mean over D_distill of 1 / sum_i w_i(x)^2, remembered teachers included."""
    memory = server.memory
    absent = [] if memory is None else memory.absent("distill", models.clients)
    scores = evidence.certainty["distill"][[*models.clients, *absent]]
    weights = scores / scores.sum(dim=0).clamp(min=_SMALLEST_SUM)
    return float((1 / weights.square().sum(dim=0)).mean())


def _accuracy(server: Server, classes: Tensor) -> float:
    targets = server.run.data.evaluation_examples.targets
    return float((classes == targets).float().mean())
