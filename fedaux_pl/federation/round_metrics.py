"""The metrics of a round that do not need predictions: losses, bytes, memory."""

from collections.abc import Collection, Mapping, Sequence

from fedaux_pl.algorithms import Answer, FurtherRelease, TeacherMemory, Update
from fedaux_pl.federation.context import Context
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import of_head
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import ReleasedHead, Scoring


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


def traffic(
    updates: Sequence[Update],
    payloads: Mapping[str, State],
    head_only: bool,
    processes: Processes,
    before: tuple[float, float],
) -> dict[str, float]:
    """Return the bytes of a round from the clients and to them, and of the run so far (appendix D).

    As there, h_0 is sent in the preparation and whole models in every round; with ``head_only``, g
    alone. Tensors count with the precision that they have. ``before`` are those before the round.
    """
    models = sum(
        state_bytes({k: v for k, v in update.state.items() if not head_only or of_head(k)})
        for update in updates
    )
    own_up = models + sum(state_bytes(update.payload) for update in updates)
    own_down = models + sum(state_bytes(payloads[update.architecture]) for update in updates)
    up, down = map(sum, zip(*processes.gather((own_up, own_down)), strict=True))
    totals = {"bytes/up_total": before[0] + up, "bytes/down_total": before[1] + down}
    return {"bytes/up": up, "bytes/down": down, **totals}


def preparation_traffic(
    context: Context,
    scoring: Scoring | None,
    h0: Mapping[str, State],
    heads: Sequence[ReleasedHead],
    further: Collection[FurtherRelease] = (),
) -> tuple[int, int]:
    """Return the bytes of the preparation, to the server and to the clients (FedAUX, appendix D).

    Clients send what they release. They receive h_0, feature maps and, if the scorer uses them,
    features of the negatives, and the tensors of further releases.
    """
    later = [head for own in further for head in own.heads]
    up = sum(state_bytes({"weight": h.weight}) * len(h.clients) for h in [*heads, *later])
    down = sum(state_bytes(h0[name]) for name in context.architectures if name in h0)
    down += sum(state_bytes(h.public_map.tensors()) * len(h.clients) for h in heads)
    down += sum(len(own.clients) * state_bytes(own.scoring.scorer.tensors()) for own in further)
    if scoring is not None and scoring.scorer.uses_negatives:
        count, classes = len(context.data.negative_inputs), len(context.data.classes)
        lengths = (scoring.scorer.row_length(head.weight, classes) for head in heads)
        down += sum(feature_bytes(count, length) for length in lengths)
    return up, down


def memory_metrics(memory: TeacherMemory, processes: Processes) -> dict[str, float]:
    """Return the size of the memory of all processes together."""
    own = len(memory.stored), memory.bytes, memory.forgotten
    names = "memory/clients", "memory/bytes", "memory/forgotten"
    sizes = zip(*processes.gather(own), strict=True)
    return dict(zip(names, map(sum, sizes), strict=True))
