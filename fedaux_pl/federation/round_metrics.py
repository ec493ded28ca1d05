"""The metrics of a round that do not need predictions: losses, bytes, memory."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedaux_pl.algorithms import Answer, TeacherMemory, Update
from fedaux_pl.federation.context import Context
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import of_head
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Collected


def loss_metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the training losses of a round's clients; empty if none has trained."""
    if not answers:
        return {}
    losses = [answer.loss for answer in answers]
    return {
        "client_loss/mean": sum(losses) / len(losses),
        "client_loss/min": min(losses),
        "client_loss/max": max(losses),
    }


def model_bytes(updates: Sequence[Update], head_only: bool) -> int:
    """Return the bytes of the clients' models; with ``head_only``, of g alone."""
    return sum(
        state_bytes({k: v for k, v in update.state.items() if not head_only or of_head(k)})
        for update in updates
    )


def traffic(
    updates: Sequence[Update],
    payloads: Mapping[str, State],
    models: int,
    processes: Processes,
    before: tuple[float, float],
    votes: tuple[float, float] = (0, 0),
) -> dict[str, float]:
    """Return the bytes of a round from the clients and to them, and of the run so far (appendix D).

    As there, h_0 is sent in the preparation and ``models``, of that many bytes, in every round in
    both directions. Tensors count with the precision that they have. ``before`` are those before
    the round, ``votes`` those of ``vote_traffic``.
    """
    up = models + sum(state_bytes(update.payload) for update in updates)
    down = models + sum(state_bytes(payloads[update.architecture]) for update in updates)
    sent = [votes, *processes.gather((up, down))]
    up, down = map(sum, zip(*sent, strict=True))
    return {
        "bytes/up": up,
        "bytes/down": down,
        "bytes/up_total": before[0] + up,
        "bytes/down_total": before[1] + down,
    }


def vote_traffic(metrics: Mapping[str, float], models: State) -> tuple[float, float]:
    """Return the bytes of a vote: a number for each candidate; the averages and distilled models.

    Of a round's metrics, ``votes/clients`` says how many clients were asked. ``models`` are the
    weights of all architectures.
    """
    clients = metrics.get("votes/clients", 0)
    candidates = sum(key.startswith("votes/") for key in metrics) - 1
    return clients * candidates * 8, clients * 2 * state_bytes(models)


def preparation_traffic(
    context: Context,
    h0: Mapping[str, State],
    releases: Collection[Collected],
    students: Mapping[str, Any],
) -> tuple[int, int]:
    """Return the bytes of the preparation, to the server and to the clients (FedAUX, appendix D).

    Clients send what they release. They receive h_0, once the feature maps and, if the scorer uses
    them, features of the negatives, and what the server sends with a step.
    """
    up = 0
    down = sum(state_bytes(h0[name]) for name in context.architectures if name in h0)
    for index, collected in enumerate(releases):
        scorer = collected.step.scorer
        down += len(collected.clients) * state_bytes(scorer.tensors())
        for head in collected.heads:
            up += state_bytes({"weight": head.weight}) * len(head.clients)
            if index == 0:  # later steps use the same maps
                down += state_bytes(head.public_map.tensors()) * len(head.clients)
            if scorer.uses_negatives:
                width = int(students[context.architectures[head.client]].feature_dim)
                down += feature_bytes(len(context.data.negative_inputs), width)
    return up, down


def memory_metrics(memory: TeacherMemory, forgotten: int, processes: Processes) -> dict[str, float]:
    """Return the size of the memory of all processes together, and how many were forgotten."""
    stored = sum(teacher.bytes for teacher in memory.values())
    sizes = len(memory), stored, forgotten  # of this process
    clients, stored, forgotten = map(sum, zip(*processes.gather(sizes), strict=True))
    return {"memory/clients": clients, "memory/bytes": stored, "memory/forgotten": forgotten}
