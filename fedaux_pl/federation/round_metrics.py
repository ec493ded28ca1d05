"""The metrics of a round that do not need the data: seconds, losses, bytes, memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fedaux_pl.algorithms import Answer, TeacherMemory, Update
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import state_bytes
from fedaux_pl.models import of_head
from fedaux_pl.processes import Processes


@contextmanager
def timed(metrics: dict[str, float], stage: str, device: torch.device) -> Iterator[None]:
    """Adds the seconds of a stage to the metrics of its round."""
    start = time.perf_counter()
    yield
    if device.type == "cuda":  # kernels run asynchronously
        torch.cuda.synchronize(device)
    metrics[f"seconds/{stage}"] = time.perf_counter() - start


def loss_metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """The training losses of a round's clients; empty if none has trained."""
    if not answers:
        return {}
    losses = [answer.loss for answer in answers]
    return {
        "client_loss/mean": sum(losses) / len(losses),
        "client_loss/min": min(losses),
        "client_loss/max": max(losses),
    }


def traffic(
    updates: Sequence[Update], payloads: Mapping[str, State], head_only: bool, processes: Processes
) -> tuple[int, int]:
    """The bytes of a round, from the clients and to them: models, and what is sent besides.

    With ``head_only`` g alone is trained and sent: h was sent in the preparation.

    Args:
        updates: The updates of this process's clients.
        payloads: What the server has sent to the clients of each architecture besides its model.
        head_only: Whether g alone is trained.
        processes: The processes that share the clients.
    """
    models = sum(
        state_bytes({k: v for k, v in update.state.items() if not head_only or of_head(k)})
        for update in updates
    )
    up = models + sum(state_bytes(update.payload) for update in updates)
    down = models + sum(state_bytes(payloads[update.architecture]) for update in updates)
    sums = [sum(numbers) for numbers in zip(*processes.gather((up, down)), strict=True)]
    return sums[0], sums[1]


def byte_metrics(
    sent: tuple[int, int],
    history: Sequence[Mapping[str, float]],
    preparation: tuple[float, float],
) -> dict[str, float]:
    """The bytes of a round, and of the run so far (FedAUX, appendix D).

    As there, h_0 is sent in the preparation and whole models in every round, (T + 1) / T of the
    traffic of T rounds. (In round 1 the head alone would do, since clients have h_0.) Tensors count
    with the precision that they have: weights usually as float32, released heads as float64.

    Args:
        sent: The bytes of this round, to the server and to the clients.
        history: The metrics of the rounds before.
        preparation: The bytes of the preparation, to the server and to the clients.
    """
    totals = preparation
    if history:
        totals = history[-1]["bytes/up_total"], history[-1]["bytes/down_total"]
    return {
        "bytes/up": sent[0],
        "bytes/down": sent[1],
        "bytes/up_total": totals[0] + sent[0],
        "bytes/down_total": totals[1] + sent[1],
    }


def memory_metrics(memory: TeacherMemory, processes: Processes) -> dict[str, float]:
    """The size of the memory of all processes together."""
    own = {
        "memory/clients": len(memory.stored),
        "memory/bytes": memory.bytes,
        "memory/forgotten": memory.forgotten,
    }
    sizes = processes.gather(own)
    return {name: sum(size[name] for size in sizes) for name in own}
