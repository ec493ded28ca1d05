"""The federation: Algorithms 1 and 2 of FedAUX (Sattler et al. 2021) under one Trainer.

One epoch of the Trainer is one communication round. Every seed is derived from the run's seed, the
round, the client and the stage, so that the result does not depend on interruptions, on the order
of clients or on the number of processes. The server's models are replaced at the end of a round:
an interrupted run resumes after its last finished round.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Released, Update
from fedaux_pl.algorithms.memory import forget
from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import round_metrics
from fedaux_pl.federation.averaging import gather_answers
from fedaux_pl.federation.client_models import attach_data, find_client
from fedaux_pl.federation.context import ServerFeatures
from fedaux_pl.federation.federation_module import FederationModule
from fedaux_pl.federation.given_h0 import read_h0, same_weights
from fedaux_pl.federation.metric_log import log_measured, log_round
from fedaux_pl.federation.preparation import Preparation, create_extractor
from fedaux_pl.functional import (
    LinearClassifier,
    derive_seed,
    fit_linear_head,
    sample_clients,
)
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import TrainerFn
from fedaux_pl.models import load_backbone
from fedaux_pl.scoring import ReleasedHead

# The metrics of single classes and clients, and of what is made of them.
_OF_PARTS = ("class_accuracy/", "client_", "mean_client/", "worst_client/")


class Federation(FederationModule):
    """Run a method of federated learning, one communication round per epoch.

    A round logs the accuracy of the students' ensemble: ``val/accuracy`` on the validation data or,
    without any, ``accuracy`` on the test data. ``accuracy/resnet8`` is that of one student. A round
    also logs the ``metrics`` and, where the evaluated data name their clients, all of this for each
    client, as their mean ``mean_client/accuracy`` and as ``worst_client/accuracy``. Further
    measurements are ``client_loss/mean`` and ``distillation_loss/resnet8``. Callbacks can monitor
    all of these but those of single clients. A test logs ``accuracy``, ``accuracy/resnet8`` and the
    ``metrics``, likewise.

    Args:
        algorithm: The method with its options, such as FedAvg(), FedDF() or FedAUX().
        clients: How many clients train each architecture, e.g. {resnet8: 20}.
        participation: The fraction of the clients that take part in a round (at least one).
        trained: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
        local: How clients train.
        distillation: How the server distills its students, in methods with distillation.
        pretraining: How h_0 is learned, in methods that start from it.
        batchnorm_statistics: What BatchNorm uses in the evaluation: ``running`` statistics, or,
            with ``own``, a client is evaluated with the statistics of its own training data: of one
            pass without augmentation, with the server's weights (or the client's, of FedBN and
            ``local.fine_tuning``). Test or validation data must name their clients. A checkpoint
            can be tested with another value than its run had.
        model_options: Further arguments of ``create_model`` for every architecture, e.g.
            {width: 0.5}; those of a single one stand under its name, e.g. {resnet8: {width: 0.5}}.
        seed: The seed of the run, from which all others are derived.
        threads: The number of CPU threads of each process; another number rounds sums differently.
            None: that of the resumed checkpoint; without one, OMP_NUM_THREADS if set, else 1 if
            every network has fewer than 500,000 parameters, else the number of cores, at most 4.
        metrics: Metrics of the students' ensemble besides accuracy: short names (f1, auroc,
            balanced_accuracy, ece, ...) and class paths of torchmetrics, as a list, or with their
            options, e.g. {f1: {average: weighted}}. Macro averages are over the classes that occur.
        acceleration: ``auto`` uses our kernels and CUDA graphs on CUDA, ``off`` plain PyTorch, as
            does FEDAUX_PL_ACCELERATION=off. Results differ by rounding, on the CPU not at all.

    Examples:
        >>> from fedaux_pl import FedDF, Federation
        >>> federation = Federation(FedDF(), clients={"resnet8": 10}, participation=0.3)
        >>> federation.select_clients(1)
        [0, 4, 8]

        ``Trainer(max_epochs=100).fit(federation, datamodule=FederatedDataModule(...))`` runs it.
    """

    def on_fit_start(self) -> None:
        """Create the clients and the server, and run Algorithm 1, or what the role does instead."""
        if self.loaded_from is not None and self.trainer.ckpt_path is None:
            raise ConfigurationError(
                f"this federation was loaded from {self.loaded_from} after {len(self.history)} "
                "rounds, which a new run would forget: give fit the same ckpt_path to continue it, "
                "or create a new Federation"
            )
        self.loaded_from = None
        self.create_parts()
        preparation = self.create_preparation()
        if self.role.announces_duration:
            self.announce_duration(preparation)
        self.role.run(self, preparation)
        if not self.role.has_rounds:
            self.trainer.should_stop = True

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def prepare(self, preparation: Preparation) -> None:
        """Algorithm 1: learn h_0, let every client release its scoring head, compute scores.

        A resumed run has h_0 and the heads from its checkpoint.
        """
        self.preparation = preparation
        self.scores = {}
        self.labels = {}
        self.learn_h0(preparation)
        self._release_heads()
        self.preparation_bytes = round_metrics.preparation_traffic(
            preparation.context, self.h0, self.releases.values(), dict(self.students.items())
        )
        for callback in federation_callbacks(self.trainer):
            callback.on_federation_prepared(self.trainer, self)

    def learn_h0(self, preparation: Preparation) -> None:
        """Learn or read h_0, unless the method needs none or a checkpoint has it.

        Nothing that is given is ignored: a resumed run refuses another h_0 than its own.
        """
        for name, given in self.given_h0.items():
            kept = self.h0.get(name)
            if kept is None:
                continue
            weights, _ = read_h0(given, self.students[name])
            if not same_weights(weights, kept):
                raise ConfigurationError(
                    f"federation.h0: got other weights of {name} than the checkpoint's; expected "
                    "none, because a resumed run keeps its h_0: leave it out"
                )
        if self.algorithm.pretrained and not self.h0:  # h_0^P <- train_self_supervised(h^P, D_aux)
            students = self.students.items()
            self._h0 = {name: preparation.pretrain(name, student) for name, student in students}
            for name, student in students:
                load_backbone(student, self.h0[name])

    def _release_heads(self) -> None:
        """Collect the releases of all clients; in later rounds, of sites that had not answered."""
        if not self.plan:
            return
        data = self.data
        preparation = self.preparation
        is_first = not self.heads
        is_complete = not any(map(preparation.missing, self.releases.values()))
        if is_complete and (self.scores or self.labels):
            return
        features = ServerFeatures(
            data, self.extractors(), preparation.context.runner.predict_features
        )
        parts = features.parts()
        if self.head_only and self.trainer.precision == "32-true":  # steps compute the same
            self.server.keep_features(parts)
        released = Released(
            self.plan,
            self.releases,
            architectures=self.architectures,
            sizes=data.client_sizes,
            num_negatives=len(data.negative_inputs),
            num_classes=len(data.classes),
            parts=parts,
        )
        first: Sequence[ReleasedHead] = []
        for step in self.plan.values():  # w_i of every client, noisy
            for name, asked in released.ask(step, self.algorithm.send).items():
                self.releases[name] = preparation.release_heads(self.pool, asked, features, first)
            first = self.heads
            released = replace(released, sizes=data.client_sizes)  # sites have told theirs
        self.labels = self.algorithm.label(released)
        self.scores = self.algorithm.score(released, self.labels)  # s_i(x) for x in D_distill
        if self.labels and is_first:  # later, the students' heads have been trained
            self._start_heads(released)

    def _start_heads(self, released: Released) -> None:
        """Give the students the teacher's classifiers, or heads that are fitted to its labels."""
        classifiers = self.algorithm.classifiers(released)
        for name, features in released.reference.items():
            if name in classifiers:
                public_map = released.group(name)[0].public_map
                fitted = public_map.linear_head(classifiers[name], features)
            else:
                fitted = LinearClassifier(*fit_linear_head(features, self.labels["distill"]))
            weight, bias = (x.float() for x in self.processes.broadcast(fitted))
            head = {"head.weight": weight, "head.bias": bias}
            self.students[name].load_state_dict(head, strict=False)

    def extractors(self) -> dict[str, nn.Module]:
        """Return h_0 of each architecture; empty before it is learned."""
        return {name: create_extractor(self.students[name], self.h0[name]) for name in self.h0}

    # --- Algorithm 2 ---------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Algorithm 2: run one communication round.

        If it fails, the students and the carried state are restored. Several processes share the
        clients, the teachers and the students.
        """
        t = self.current_epoch + 1
        self.metrics = {"round": t}
        theta = self.students.states()
        with self.undone_on_error():
            with self.timed("clients"):  # theta_i <- train(theta^P, D_i) for i in S_t
                self._release_heads()  # of sites that answer late
                selected = self.select_clients(t)
                payloads = self.server.payloads()
                # of this process's clients; all else is the same in every process
                updates = self.pool.train(t, selected, theta, payloads)
                self.metrics |= self.pool.round_metrics
            with self.timed("averaging"):  # theta^P <- sum_i |D_i| theta_i / sum_i |D_i|
                answers = gather_answers(updates, selected, self.processes)
                self.metrics |= round_metrics.loss_metrics(answers)
                averages = self.server.average(theta, updates, answers)
                round_ = self.server.collect_round(
                    t, updates, answers, averages, scores=self.scores, labels=self.labels
                )
            students: Mapping[str, State] = averages
            if self.algorithm.distills:
                with self.timed("teachers"):  # y(x) <- softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x))
                    soft_labels = self.server.soft_labels(round_)
                with self.timed("distillation"):  # theta_dist minimizes D_KL(y, softmax(f(x)))
                    distilled, losses = self.server.distill(round_, soft_labels)
                    # theta^P <- theta_avg + lambda (theta_dist - theta_avg); paper: lambda = 1
                    ask = partial(self.pool.vote, t)
                    students, chosen = self.server.blend(averages, distilled, ask)
                self.metrics |= {**losses, **chosen}
            if self.is_measured(t):
                with self.timed("evaluation"):
                    measured = self.server.evaluate(round_)
                self.metrics |= {f"{self.evaluation_prefix}{k}": v for k, v in measured.items()}
            forgotten = forget(self.carried.memory, t, round_.clients, self.processes)
            self._complete_metrics(updates, payloads, forgotten)
            for name, state in students.items():
                self.students[name].load_state_dict(state)
        # advances global_step: otherwise Lightning would write no checkpoint
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    @torch.inference_mode(False)  # tests run in it, and fine-tuning needs gradients
    def client_logits(self, examples: Examples, logits: Tensor) -> Tensor:
        """Return f(x) of data that name their clients by the models that these use themselves.

        See ``client_model``. ``logits``, those of the server's models, are returned where clients
        have no others; the first of ``examples`` may be evaluated only.
        """
        is_same = list(examples.client_names) == self.data.client_names
        is_early = self.trainer.sanity_checking  # before the first round
        is_personal = bool(self.describe_client_models())
        if not is_personal or examples.clients is None or not is_same or is_early:
            return logits
        owners = examples.clients[: len(logits)].cpu()
        logits = logits.clone()
        models = self._client_states(sorted({*owners.tolist()}))
        runner = self.server.context.runner
        for client, state in models.items():
            rows = (owners == client).nonzero().flatten().to(logits.device)
            model = self.server.models[self.architectures[client]]
            logits[rows] = runner.predict(model, state, examples.inputs[rows])
        return logits

    def _client_states(self, clients: Sequence[int]) -> dict[int, State]:
        """Return the models of clients, made from the server's of the last round."""
        if getattr(self, "pool", None) is None:  # of a checkpoint
            self.create_parts()
        theta = self.students.states()
        return self.pool.own_models(int(self.metrics["round"]), clients, theta)

    @torch.inference_mode(False)
    def client_model(self, name: str, data: FederatedDataModule | None = None) -> nn.Module:
        """Return the model that a client uses itself, which maps inputs to logits.

        It is the server's with the client's own BatchNorm (FedBN), fine-tuned on its data
        (``local.fine_tuning``), with BatchNorm statistics of its data (``batchnorm_statistics``
        own), and it is the one that is evaluated for the client.

        Args:
            name: The client, as the data name it.
            data: The data of the run, for a federation that was loaded from a checkpoint; it needs
                none after a fit or a test.
        """
        if not self.metrics:
            raise ConfigurationError(
                "client_model: this federation has no finished round: fit it, or load one with "
                "Federation.load_from_checkpoint(path)"
            )
        if data is not None:
            attach_data(self, data, self.loaded_from)
            self.create_parts()
        client = find_client(name, self.data)
        if not self.describe_client_models(client):
            remedy = (
                "set batchnorm_statistics to 'own' (of a network with BatchNorm) or "
                "local.fine_tuning to at least 1, or choose FedBN"
            )
            if self.describe_client_models():
                remedy = "it has taken part in no round"
            raise ConfigurationError(
                f"client_model: {name} has no model of its own in this run, only the server's: "
                f"{remedy}"
            )
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads or threads)  # as in the evaluation
        try:
            [state] = self._client_states([client]).values()
        finally:
            torch.set_num_threads(threads)
        model = copy.deepcopy(self.students[self.architectures[client]])
        model.load_state_dict(state)
        return model.eval()

    def on_fit_end(self) -> None:
        """Send the models of the last round to real sites."""
        if self.role.has_rounds and self.history:
            self.pool.finish(len(self.history), self.students.states())

    def select_clients(self, t: int) -> list[int]:
        """Return S_t, the clients that take part in round t; empty if they only make a release."""
        if not self.algorithm.trains_clients:
            return []
        seed = derive_seed(self.seed, SeedPurpose.CLIENT_SELECTION, t)
        return sample_clients(len(self.architectures), self.participation, seed)

    def is_measured(self, t: int) -> bool:
        """Return whether a validation follows round t; only then are its teachers evaluated."""
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and (every is None or t % every == 0)

    def _complete_metrics(
        self, updates: Sequence[Update], payloads: Mapping[str, State], forgotten: int
    ) -> None:
        """Add the traffic and the size of the teacher memory, then broadcast the metrics.

        ``forgotten`` is how many clients this process has dropped from the memory.
        """
        before = self.preparation_bytes
        if self.history:
            last = self.history[-1]
            before = last["bytes/up_total"], last["bytes/down_total"]
        votes = round_metrics.vote_traffic(self.metrics, self.students.state_dict())
        models = round_metrics.model_bytes(updates, self.head_only)
        self.metrics |= round_metrics.traffic(
            updates, payloads, models, self.processes, before, votes
        )
        if self.algorithm.remember:
            self.metrics |= round_metrics.memory_metrics(
                self.carried.memory, forgotten, self.processes
            )
        self.metrics = self.processes.broadcast(self.metrics)  # seconds differ between processes

    def on_train_epoch_end(self) -> None:
        """Add the round's metrics to the history, and log them at the round's number."""
        self.history.append(self.metrics)
        self._round_start = None
        log_round(self, self.metrics)
        for callback in federation_callbacks(self.trainer):
            callback.on_round_end(self.trainer, self)

    # --- Evaluation ----------------------------------------------------------------------------

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Predict with each student and with their ensemble."""
        x, labels = batch[:2]
        if batch_idx == 0:
            self.students.check_inputs(x)
            self.evaluation.begin()
        is_fit = self.trainer.state.fn is TrainerFn.FITTING
        if self.reads_features and is_fit:
            # the same data in the same order after every round
            rows = torch.arange(len(x), device=x.device) + self.evaluation.count
            states = [(name, student.state_dict()) for name, student in self.students.items()]
            logits = [self.server.predict(*student, "evaluation", rows) for student in states]
            members = torch.stack(logits)
        else:
            members = self.students.evaluate(x)
        keep_logits = bool(self.chosen_metrics) or self.evaluated_clients is not None
        self.evaluation.add(members, labels, keep_logits)

    test_step = validation_step

    def measure(self) -> dict[str, float]:
        """Return accuracies, chosen metrics and all metrics by client, after all batches."""
        predictions = self.evaluation.join_batches()
        labels = predictions.labels
        metrics = self.evaluation.measure(predictions, self.students)
        examples = self.evaluated_clients
        if examples is not None and examples.clients is not None:
            clients = examples.clients[: len(labels)].to(labels.device)  # fewer: limit_val_batches
            names = self.client_labels(examples.client_names)
            logits = self.client_logits(examples, predictions.logits)
            metrics |= self.evaluation.measure_clients(logits, labels, clients, names)
        return metrics

    def on_test_epoch_end(self) -> None:
        """Log all metrics on the test data."""
        log_measured(self, self.measure())

    def on_validation_epoch_end(self) -> None:
        """Add all that was measured to the metrics of the round, also by real sites themselves."""
        is_fit = self.trainer.state.fn is TrainerFn.FITTING
        if is_fit and not self.trainer.sanity_checking:
            self.metrics |= self.pool.evaluate(int(self.metrics["round"]))
        prefix = self.evaluation_prefix
        hidden: tuple[str, ...] = () if self.shows_classes else _OF_PARTS
        shown = {k: v for k, v in self.measure().items() if not k.startswith(hidden)}
        if is_fit:
            self.metrics |= {prefix + name: value for name, value in shown.items()}
            hidden = _OF_PARTS[:2]  # callbacks monitor mean and worst: there may be many clients
        measured = {prefix + k: v for k, v in shown.items() if not k.startswith(hidden)}
        log_measured(self, measured, logger=not is_fit)  # a round logs all its metrics
