"""The metrics of a round that do not need the data: seconds, losses, bytes, memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fedaux_pl.algorithms import Answer, TeacherMemory, Update
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
    """The training losses of a round's clients."""
    losses = [answer.loss for answer in answers]
    return {
        "client_loss/mean": sum(losses) / len(losses),
        "client_loss/min": min(losses),
        "client_loss/max": max(losses),
    }


def update_bytes(updates: Sequence[Update], head_only: bool) -> int:
    """The bytes that clients send in a round, equal to the bytes that they receive.

    With ``head_only`` g alone is trained and sent: h was sent in the preparation.
    """
    return sum(
        state_bytes({k: v for k, v in update.state.items() if not head_only or of_head(k)})
        for update in updates
    )


def byte_metrics(
    sent: int, history: Sequence[Mapping[str, float]], preparation: tuple[float, float]
) -> dict[str, float]:
    """The bytes of a round, and of the run so far (FedAUX, appendix D).

    As there, h_0 is sent in the preparation and whole models in every round, (T + 1) / T of the
    traffic of T rounds. (In round 1 the head alone would do, since clients have h_0.) Tensors count
    with the precision that they have: weights usually as float32, released heads as float64.

    Args:
        sent: The bytes of this round in each direction.
        history: The metrics of the rounds before.
        preparation: The bytes of the preparation, to the server and to the clients.
    """
    up, down = preparation
    if history:
        up, down = history[-1]["bytes/up_total"], history[-1]["bytes/down_total"]
    return {
        "bytes/up": sent,
        "bytes/down": sent,
        "bytes/up_total": up + sent,
        "bytes/down_total": down + sent,
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
