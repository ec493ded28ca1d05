"""The federation: Algorithms 1 and 2 of FedAUX (Sattler et al. 2021), driven by one Trainer.

One epoch of the Trainer is one communication round. All randomness is derived from the seed, the
round, the client and the stage, so that a resumed run, another order of clients or more processes
change nothing. Work is done on copies and the server's models are replaced last: a run that is
killed goes on after its last finished round.
"""

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.algorithms import Algorithm, Answer, TeacherMemory, Update
from fedaux_pl.callbacks.progress import find_progress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine import (
    Distillation,
    LocalClients,
    LocalTraining,
    Pretraining,
    StageRunner,
    evaluating,
    isolated_rng,
)
from fedaux_pl.engine.accounting import preparation_bytes, update_bytes
from fedaux_pl.engine.averaging import average_updates
from fedaux_pl.engine.inference import BatchNormStatistics
from fedaux_pl.engine.parallel import processes_of
from fedaux_pl.engine.preparation import Preparation, extractor
from fedaux_pl.engine.released import describe_privacy, pack, unpack
from fedaux_pl.engine.resuming import check_same_settings
from fedaux_pl.engine.server import Server, Teaching
from fedaux_pl.engine.undo import all_or_nothing
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import derive_seed, sample_clients
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import check_model, create_for, load_backbone, of_head, options_of
from fedaux_pl.modules import ClientModule, DistillationModule
from fedaux_pl.modules.classifier import TrainedPart
from fedaux_pl.scoring import ReleasedHead

_INIT, _SELECT = 20, 21  # what a seed is for


class Federation(pl.LightningModule):
    """Runs any of the methods, round by round.

    Args:
        algorithm: The method: FedAvg, FedProx, FedDF, FedBE or FedAUX, each with its options.
        clients: How many clients train each architecture, e.g. {resnet8: 20}.
        participation: C, the share of the clients that take part in a round; at least one does.
        train: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
        local: How clients train.
        distillation: How the server distils its students, in the methods that do.
        pretraining: How h_0 is learned, in the methods that start from it.
        optimizer_state: ``reset`` starts every optimizer afresh in every round, ``carry`` lets each
            client's and each student's go on.
        batchnorm: The statistics that teachers and evaluation use: ``running``, or those of the
            ``batch`` at hand, as the authors' code does (transductive: a prediction then depends
            on the other test images of its batch).
        model_options: Further arguments of ``create_model`` for every architecture, e.g.
            {width: 0.5}; those of one alone stand under its name, e.g. {resnet8: {width: 0.5}}.
        seed: What all randomness of the run is derived from.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: dict[str, int],
        participation: float = 0.4,
        train: TrainedPart = "full",
        local: LocalTraining = LocalTraining(),  # noqa: B008 - frozen
        distillation: Distillation = Distillation(),  # noqa: B008 - frozen
        pretraining: Pretraining = Pretraining(),  # noqa: B008 - frozen
        optimizer_state: Literal["reset", "carry"] = "reset",
        batchnorm: BatchNormStatistics = "running",
        model_options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if not clients or any(count < 1 for count in clients.values()):
            raise ValueError(
                f"clients must name architectures with at least 1 client each, but is {clients}"
            )
        sample_clients(1, participation, 0)  # a wrong share fails here
        for name in clients:
            check_model(name, **options_of(name, clients, model_options or {}))  # and a name here
        self.algorithm = algorithm
        self.clients = clients
        self.participation = participation
        self.train_part = train
        self.local = local
        self.distillation = distillation
        self.pretraining = pretraining
        self.carry = optimizer_state == "carry"
        self.batchnorm: BatchNormStatistics = batchnorm
        self.model_options = model_options or {}
        self.seed = seed
        self.only_pretrain = False
        self.h0_accuracy: dict[str, float] = {}
        self.architectures = [name for name, count in clients.items() for _ in range(count)]
        self.students = nn.ModuleDict()
        self.accuracies = nn.ModuleDict()
        self.heads: list[ReleasedHead] = []
        self.scores: dict[str, Tensor] = {}
        self.history: list[dict[str, float]] = []
        self.h0: dict[str, dict[str, Tensor]] = {}
        self._entry: dict[str, float] = {}
        self.memory = TeacherMemory() if algorithm.remember else None
        self._server_optimizers: dict[str, dict[str, Any]] = {}
        self._client_optimizers: dict[int, dict[str, Any]] = {}

    # --- before the first round ----------------------------------------------------------------

    @property
    def data(self) -> FederatedDataModule:
        """Who holds which data."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, FederatedDataModule):
            raise ConfigurationError(
                "a federation needs to know who holds which data: give the Trainer a "
                "FederatedDataModule as datamodule"
            )
        return data

    def setup(self, stage: str) -> None:
        """Creates the server's models, once the data say how many classes there are."""
        data, self.processes = self.data, processes_of(self.trainer)
        if data.num_clients != len(self.architectures):
            raise ConfigurationError(
                f"the data are split over {data.num_clients} clients, but the federation has "
                f"{len(self.architectures)}: {self.clients}"
            )
        if self.algorithm.needs_auxiliary and data.auxiliary is None:
            raise ConfigurationError(
                f"{type(self.algorithm).__name__} needs auxiliary data: set data.auxiliary, or "
                "choose FedAvg or FedProx with pretrained: false"
            )
        if self.students:
            return
        for number, name in enumerate(self.clients):
            with isolated_rng(derive_seed(self.seed, _INIT, number)):
                self.students[name] = model = create_for(
                    data.input_shape,
                    name,
                    len(data.classes),
                    pretrained=self.algorithm.pretrained,
                    **options_of(name, self.clients, self.model_options),
                )
            data.check_model(model)
        for name in (*self.clients, "ensemble"):
            # every process measures on all test data, which then is nothing to be added up
            self.accuracies[name] = MulticlassAccuracy(
                len(data.classes), average="micro", sync_on_compute=False
            )

    def configure_optimizers(self) -> list[Any]:
        """None of its own: every stage has one."""
        return []

    def on_fit_start(self) -> None:
        """Algorithm 1, and the clients and stages that Algorithm 2 works with."""
        if self.device.type == "cuda":  # the layout in which convolutions are fast there
            self.to(memory_format=torch.channels_last)
        progress, runner = find_progress(self.trainer), StageRunner(self.trainer)
        options = {"num_classes": len(self.data.classes), "train": self.train_part}
        client_options = {**options, **_optimizer(self.local), "mu": self.algorithm.mu}
        student_options = {**options, **_optimizer(self.distillation)}
        # In plain dicts: what these are trained to is no part of the server's state.
        clients, distillers = {}, {}
        for name, model in self.students.items():
            clients[name] = ClientModule(copy.deepcopy(model), **client_options).to(self.device)
            distillers[name] = DistillationModule(copy.deepcopy(model), **student_options)
        self.pool = LocalClients(
            self.data,
            runner,
            clients,
            self.architectures,
            self.local,
            self._client_optimizers if self.carry else None,
            self.seed,
            progress,
            self.processes,
        )
        self.server = Server(
            self.data,
            runner,
            progress,
            {name: module.model for name, module in clients.items()},
            distillers,
            self.distillation,
            self._server_optimizers if self.carry else None,
            self.batchnorm,
            self.seed,
            self.processes,
            self.memory,
        )
        self.prepare(
            Preparation(
                self.data,
                runner,
                progress,
                Path(self.trainer.default_root_dir) / "cache",
                self.pretraining,
                self.seed,
                self.processes,
            )
        )

    def prepare(self, preparation: Preparation) -> None:
        """Algorithm 1: pre-train h_0, let every client release its scoring head, and score."""
        if self.algorithm.pretrained and not self.h0:
            self.h0 = {
                name: preparation.pretrain(name, self.students[name]) for name in self.clients
            }
            if not self.history:
                for name, state in self.h0.items():
                    load_backbone(self.students[name], state)
        if self.only_pretrain:
            for name in self.clients:
                model = extractor(self.students[name], self.h0[name])
                self.h0_accuracy[name] = preparation.knn_accuracy(model)
            self.trainer.fit_loop.max_epochs = 0  # no rounds
            return
        scoring = self.algorithm.scoring
        if scoring is not None:
            h0 = {name: extractor(self.students[name], self.h0[name]) for name in self.clients}
            if not self.heads:
                self.heads = preparation.release_heads(
                    self.pool, scoring, h0, self.architectures, self.algorithm.secret_noise
                )
            inputs = {part: self.server.inputs(part) for part in ("distill", "test")}
            self.scores = preparation.score(scoring, self.heads, h0, self.architectures, inputs)
        self._announce("on_federation_prepared")

    # --- a round -------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Algorithm 2: one communication round.

        Several processes share the clients, the teachers and the students. What is not said to be
        the share of one is the same in all of them.
        """
        round_ = self.current_epoch + 1
        self._entry = {"round": round_}
        kept = {} if self.memory is None else self.memory.kept
        with all_or_nothing(self.students, self._client_optimizers, self._server_optimizers, kept):
            with self._timed("clients"):
                selected = self.selected(round_)
                updates = self.pool.train(round_, selected, self._states())  # the share of one
            with self._timed("averaging"):
                answered = self.processes.merge({update.client: update.about for update in updates})
                answers = [answered[client] for client in selected if client in answered]
                averages = self._average(updates, answers)
            teachers = [answer.client for answer in answers]
            teaching = Teaching(self.algorithm, round_, updates, teachers, averages, self.scores)
            states = averages
            if self.algorithm.distills:
                with self._timed("teachers"):
                    teaching = self.server.gathered(teaching)
                    targets = self.server.teach(teaching)
                with self._timed("distillation"):
                    states, losses = self.server.distill(round_, averages, targets)
                self._entry |= losses
            with self._timed("evaluation"):
                self._evaluate_round(teaching)
            self._account(updates)
            self._remember(round_, teachers)
            self._entry = self.processes.broadcast(self._entry)  # whose seconds differ
            for name, state in states.items():
                self.students[name].load_state_dict(state)
        self._count_round()

    def _evaluate_round(self, teaching: Teaching) -> None:
        """How good the averages are before distillation, and the clients that teach."""
        for name, state in teaching.averages.items():
            self._entry[f"averaged_accuracy/{name}"] = self.server.accuracy(name, state)
        if self.algorithm.distills:
            self._entry |= self.server.assess(teaching)

    def selected(self, round_: int) -> list[int]:
        """S_t, the clients that take part in a round."""
        seed = derive_seed(self.seed, _SELECT, round_)
        return sample_clients(len(self.architectures), self.participation, seed)

    def _remember(self, round_: int, present: Sequence[int]) -> None:
        """Keeps what this round's clients said, for the rounds in which they are away."""
        if self.memory is None:
            return
        self.memory.commit(round_, present)
        names = ("memory/clients", "memory/bytes", "memory/forgotten")
        sizes = len(self.memory.kept), self.memory.bytes, self.memory.forgotten
        for own in self.processes.gather(dict(zip(names, sizes, strict=True))):
            for name, size in own.items():
                self._entry[name] = self._entry.get(name, 0) + size

    def _states(self) -> dict[str, dict[str, Tensor]]:
        return {name: model.state_dict() for name, model in self.students.items()}

    def _average(self, updates: Sequence[Update], answers: Sequence[Answer]) -> dict[str, State]:
        """theta^P by |D_i| within each architecture; one without a client keeps its model."""
        averages: dict[str, State] = dict(self._states())
        sizes: dict[str, dict[int, int]] = {}
        for answer in answers:
            sizes.setdefault(answer.architecture, {})[answer.client] = answer.size
        for name, state in average_updates(updates, sizes, averages, self.processes).items():
            # h is the same everywhere, but for rounding
            trained = {k: v for k, v in state.items() if self.train_part != "head" or of_head(k)}
            averages[name] = {**averages[name], **trained}
        losses = [answer.loss for answer in answers]
        self._entry |= {
            "client_loss/mean": sum(losses) / len(losses),
            "client_loss/min": min(losses),
            "client_loss/max": max(losses),
        }
        return averages

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":  # what was only launched is not done
            torch.cuda.synchronize(self.device)
        self._entry[f"seconds/{stage}"] = time.perf_counter() - start

    def _account(self, updates: Sequence[Update]) -> None:
        """Bytes of this round and of all so far, the preparation included."""
        sent = sum(self.processes.gather(update_bytes(updates, self.train_part == "head")))
        if self.history:
            up, down = (self.history[-1][f"bytes/{way}_total"] for way in ("up", "down"))
        else:
            scoring = self.algorithm.scoring
            asked = scoring is not None and scoring.scorer.uses_negatives
            negatives = len(self.data.negative_inputs) if asked else 0
            up, down = preparation_bytes(self.architectures, self.h0, self.heads, negatives)
        self._entry |= {
            "bytes/up": sent,
            "bytes/down": sent,
            "bytes/up_total": up + sent,
            "bytes/down_total": down + sent,
        }

    def _count_round(self) -> None:
        """Advances ``global_step``, without which no checkpoint would be written."""
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    # --- evaluation ----------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Class probabilities of the ensemble of all students, shape (N, C)."""
        logits = [model(x).float() for model in self.students.values()]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)

    def _evaluate(self, batch: Sequence[Tensor]) -> None:
        x, labels = batch[0], batch[1]
        logits = {}
        for name, model in self.students.items():
            with evaluating(model, self.batchnorm):
                logits[name] = model(x).float()
        logits["ensemble"] = torch.stack(list(logits.values())).mean(dim=0)
        for name, values in logits.items():
            metric = cast(MulticlassAccuracy, self.accuracies[name])
            metric.update(values, labels)
            key = "accuracy" if name == "ensemble" else f"accuracy/{name}"
            self.log(key, metric, logger=False, on_step=False, on_epoch=True)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Accuracy of each student and of their ensemble."""
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        """Takes down the accuracies; a round without validation has none."""
        for name, metric in self.accuracies.items():
            value = float(cast(MulticlassAccuracy, metric).compute())
            self._entry["accuracy" if name == "ensemble" else f"accuracy/{name}"] = value

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Accuracy of each student and of their ensemble."""
        self._evaluate(batch)

    def on_train_epoch_end(self) -> None:
        """The round is over: what it measured becomes history."""
        self.history.append(self._entry)
        self._announce("on_round_end")

    def _announce(self, hook: str) -> None:
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            getattr(callback, hook, lambda *_: None)(self.trainer, self)

    # --- what the run promises -----------------------------------------------------------------

    def privacy(self) -> list[str]:
        """What was released under which guarantee, and what was not, a sentence each."""
        return describe_privacy(self.heads, self.algorithm.secret_noise)

    def settings(self) -> dict[str, Any]:
        """All that determines the result, as plain values: what a resumed run must share."""
        return {
            "algorithm": self.algorithm.settings(),
            "clients": dict(self.clients),
            "participation": self.participation,
            "train": self.train_part,
            "local": dataclasses.asdict(self.local),
            "distillation": dataclasses.asdict(self.distillation),
            "pretraining": dataclasses.asdict(self.pretraining),
            "optimizer_state": "carry" if self.carry else "reset",
            "batchnorm": self.batchnorm,
            "model_options": dict(self.model_options),
            "seed": self.seed,
            "data": self.data.settings(),
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps, beside the students, all that the next round needs."""
        checkpoint["federation"] = {
            "settings": self.settings(),
            "classes": list(self.data.classes),
            "input_shape": list(self.data.input_shape),
            "input_format": self.data.input_format,
            "history": self.history,
            # not yet history where the checkpoint is written after validation
            "round": self._entry,
            "h0": self.h0,
            "heads": pack(self.heads) if self.heads else {},
            "server_optimizers": self._server_optimizers,
            "client_optimizers": self._client_optimizers,
            "memory": self.processes.merge(self.memory.plain()) if self.memory else {},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores it, unless the run that asks for it is another one."""
        kept = checkpoint["federation"]
        check_same_settings(kept["settings"], self.settings())
        self.history = kept["history"]
        self._entry = kept["round"]
        self.h0 = kept["h0"]
        if kept["heads"] and self.algorithm.scoring is not None:
            self.heads = unpack(kept["heads"], self.algorithm.scoring)
        self._server_optimizers = kept["server_optimizers"]
        self._client_optimizers = kept["client_optimizers"]
        if self.memory is not None:  # each process takes a share, whoever wrote it
            self.memory.restore(dict(self.processes.share(sorted(kept["memory"].items()))))


def _optimizer(settings: LocalTraining | Distillation) -> dict[str, Any]:
    names = ("optimizer", "lr", "momentum", "weight_decay")
    return {name: getattr(settings, name) for name in names}
