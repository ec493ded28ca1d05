"""The metrics of a round: seconds, losses, traffic and memory, and how they are logged."""

import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fedaux_pl.algorithms import Answer, TeacherMemory, Update
from fedaux_pl.federation.blend import vote_traffic
from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.state import RunState
from fedaux_pl.federation.students import Students
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.lightning import pl
from fedaux_pl.models import of_head
from fedaux_pl.scoring import Collected

_LOSSES = ("client_loss/mean", "distillation_loss/")  # what callbacks may monitor, as accuracies


@dataclass
class RoundLog:
    """Collects the metrics of the current round, which ``RunState.metrics`` holds.

    Attributes:
        run: What all parts of the run work with.
        state: Its metrics are those of the round.
        students: The server's models.
        head_only: Whether clients send only g.
        prepared: The bytes of the preparation, from the clients and to them.
    """

    run: Run
    state: RunState
    students: Students
    head_only: bool
    prepared: tuple[float, float] = (0, 0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a stage to the metrics of the round."""
        start = time.perf_counter()
        yield
        device = self.run.runner.device
        if device.type == "cuda":  # kernels run asynchronously
            torch.cuda.synchronize(device)
        self.state.metrics[f"seconds/{name}"] = time.perf_counter() - start

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to those of the round."""
        self.state.metrics |= metrics

    def finish(
        self,
        updates: Sequence[Update],
        payloads: Mapping[str, State],
        memory: TeacherMemory | None,
        dropped: int,
    ) -> None:
        """Add the traffic and the size of the memory, and make all processes' metrics the same.

        Args:
            updates: What the clients of this process have sent.
            payloads: What the server has sent besides its models, by architecture.
            memory: The remembered teachers; None in methods that remember none.
            dropped: How many clients this process has dropped from the memory.
        """
        before = self.prepared
        if self.state.history:
            last = self.state.history[-1]
            before = last["bytes/up_total"], last["bytes/down_total"]
        self.add(self._traffic(updates, payloads, before))
        if memory is not None:
            self.add(memory.metrics(dropped))
        # seconds differ between processes
        self.state.metrics = self.run.processes.broadcast(self.state.metrics)

    def _traffic(
        self,
        updates: Sequence[Update],
        payloads: Mapping[str, State],
        before: tuple[float, float],
    ) -> dict[str, float]:
        """Return the bytes of a round from the clients and to them, and of the run (appendix D).

        As there, h_0 is sent in the preparation, and models in every round in both directions.
        Tensors count with the precision that they have.
        """
        models = sum(
            state_bytes({k: v for k, v in update.state.items() if not self.head_only or of_head(k)})
            for update in updates
        )
        up = models + sum(state_bytes(update.payload) for update in updates)
        down = models + sum(state_bytes(payloads[update.architecture]) for update in updates)
        votes = vote_traffic(self.state.metrics, self.students.state_dict())
        sent = [votes, *self.run.processes.gather((up, down))]
        up, down = map(sum, zip(*sent, strict=True))
        return {
            "bytes/up": up,
            "bytes/down": down,
            "bytes/up_total": before[0] + up,
            "bytes/down_total": before[1] + down,
        }


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


def preparation_traffic(
    run: Run,
    h0: Mapping[str, State],
    releases: Collection[Collected],
    students: Mapping[str, Any],
) -> tuple[int, int]:
    """Return the bytes of the preparation, to the server and to the clients (FedAUX, appendix D).

    Clients send what they release. They receive h_0, once the feature maps and, if the scorer uses
    them, features of the negatives, and what the server sends with a step.
    """
    up = 0
    down = sum(state_bytes(h0[name]) for name in run.architectures if name in h0)
    for index, collected in enumerate(releases):
        scorer = collected.step.scorer
        down += len(collected.clients) * state_bytes(scorer.tensors())
        for head in collected.heads:
            up += state_bytes({"weight": head.weight}) * len(head.clients)
            if index == 0:  # later steps use the same maps
                down += state_bytes(head.public_map.tensors()) * len(head.clients)
            if scorer.uses_negatives:
                width = int(students[run.architectures[head.client]].feature_dim)
                down += feature_bytes(len(run.data.negative_inputs), width)
    return up, down


def log_measured(
    module: pl.LightningModule, metrics: Mapping[str, float], logger: bool = True
) -> None:
    """Log numbers that are the same in all processes, without ``logger`` only for callbacks."""
    # no process sums up: sync_dist only silences a warning
    options: dict[str, Any] = {"logger": logger, "on_epoch": True, "sync_dist": True}
    with warnings.catch_warnings():  # the numbers are also returned and monitored
        warnings.filterwarnings("ignore", message=".*but have no logger configured")
        for name, value in metrics.items():
            exact = torch.tensor(value, dtype=torch.float64)
            in_bar = name in (ACCURACY, f"val/{ACCURACY}")
            module.log(name, exact, rank_zero_only=True, prog_bar=in_bar, **options)


def log_round(module: pl.LightningModule, metrics: Mapping[str, float]) -> None:
    """Log the metrics of a round in one row over the round, and the losses for callbacks.

    ``module.log`` would log them over steps, in two rows, so the loggers are called directly.
    """
    losses = {name: value for name, value in metrics.items() if name.startswith(_LOSSES)}
    log_measured(module, losses, logger=False)
    if module.trainer.is_global_zero:
        measured = dict(metrics)
        round_ = int(measured.pop("round"))
        for logger in module.trainer.loggers:
            logger.log_metrics(measured, step=round_)


def count_round(trainer: pl.Trainer) -> None:
    """Advance ``global_step`` by one round; otherwise Lightning would write no checkpoint."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()
