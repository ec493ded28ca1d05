"""Rounds are those of a plain PyTorch loop, without Lightning and the engine, bit for bit."""

import copy
from collections import Counter, namedtuple
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedaux_pl.algorithms import FedAvg, FedBN, FedDF
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.federation.settings import Distillation, LocalTraining
from fedaux_pl.functional import (
    distillation_loss,
    pack_logits,
    unpack_logits,
)
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.state_dicts import copy_state
from tests import federations
from tests.data.test_augmentation import RAND
from tests.paper import paper_fedaux

LEARNING_RATES = {"constant": (1, 1), "cosine": (1, 0.5)}  # of the two rounds
Teacher = namedtuple("Teacher", "client name size state")


class PlainRounds:
    """The rounds of a federation, after its preparation, as a plain loop."""

    def __init__(self, federation):
        self.federation, self.data = federation, federation.data
        self.models = {name: copy.deepcopy(model) for name, model in federation.students.items()}
        self.memory = {}  # for each client the logits of its last round
        self.own = {}  # for each client its BatchNorm in FedBN

    def run(self, round_, states):
        """Runs a round from the given states of the students, and returns their new states."""
        local, distillation = self.federation.local, self.federation.distillation
        teachers = []
        for client in self.federation.select_clients(round_):
            name = self.federation.architectures[client]
            batches = self.data.client_batches(
                client, local.batch_size, round_, augmentation=local.augment
            )
            start = {**states[name], **self.own.get(client, {})}
            weights = self._class_weights(client)
            state = self._train(name, start, local, batches, round_, weights)
            if isinstance(self.federation.algorithm, FedBN):
                self.own[client] = {
                    key: state[key] for key in batch_norm_entries(self.models[name])
                }
            teachers.append(Teacher(client, name, self.data.client_sizes[client], state))
        students = {name: _average(teachers, name, state) for name, state in states.items()}
        if self.federation.algorithm.distills:
            targets = self._soft_labels(round_, teachers)

            def distill(name, state):
                batches = self.data.distill_batches(
                    targets, distillation.batch_size, round_,
                    augmentation=distillation.augment,
                )  # fmt: skip
                return self._train(name, state, distillation, batches, round_)

            students = {name: distill(name, state) for name, state in students.items()}
        return students

    def _class_weights(self, client):
        """The weight of each class in the loss of a client; None for 1."""
        if self.federation.local.class_weights == "none":
            return None
        counts = Counter(self.data.client(client).targets.tolist())
        size = sum(counts.values())
        weights = torch.zeros(len(self.data.classes))
        for label, count in counts.items():
            weights[label] = size / (len(counts) * count)
        return weights

    def _train(self, name, state, settings, batches, round_, class_weights=None):
        model = self.models[name]
        model.load_state_dict(state)
        model.train()
        if getattr(settings, "batchnorm", "batch") == "frozen":
            for layer in model.modules():
                layer.train(not isinstance(layer, torch.nn.BatchNorm2d))
        lr = settings.lr * LEARNING_RATES[settings.schedule][round_ - 1]
        optimizer = OptimizerSettings(
            settings.optimizer, lr, settings.momentum, settings.weight_decay
        ).create(model.parameters())
        for epoch in range(settings.epochs):
            batches.set_epoch(epoch)
            for x, *targets in batches:
                optimizer.zero_grad()
                _loss(model(x), targets, settings, class_weights).backward()
                if settings.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
        return {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}

    @torch.no_grad()
    def _predict(self, name, state):
        model = self.models[name].eval()
        model.load_state_dict(state)
        return model(self.data.distill_inputs).float()

    def _soft_labels(self, round_, teachers):
        """softmax(sum_i s_i f_i / sum_i s_i) over the teachers i, remembered ones included."""
        algorithm, scores = (
            self.federation.algorithm,
            self.federation.evidence.certainty.get("distill"),
        )
        own = [(t.client, self._predict(t.name, t.state)) for t in teachers]
        absent = sorted(self.memory.keys() - {teacher.client for teacher in teachers})
        remembered = [(client, self.memory[client]) for client in absent]
        weighted, total, squares = torch.zeros(()), torch.zeros(()), torch.zeros(())
        for client, logits in own + remembered:
            score = torch.ones(len(self.data.distill_inputs)) if scores is None else scores[client]
            weighted = weighted + score[:, None] * logits
            total = total + score
            squares = squares + score.square()
        self.effective_teachers = float((total.square() / squares).mean())
        if algorithm.remember:
            for client, logits in own:
                self.memory[client] = unpack_logits(pack_logits(logits))
        return (weighted / total[:, None]).softmax(dim=-1)


def batch_norm_entries(model):
    """The entries of BatchNorm; those of other layers have no statistics beside them."""
    state = model.state_dict()
    return [key for key in state if f"{key.rpartition('.')[0]}.running_mean" in state]


def _loss(logits, targets, settings, class_weights=None):
    if class_weights is not None:
        smoothing = settings.label_smoothing
        losses = F.cross_entropy(logits, targets[0], reduction="none", label_smoothing=smoothing)
        return (class_weights[targets[0]] * losses).mean()
    if not targets[0].is_floating_point():
        return F.cross_entropy(logits, targets[0], label_smoothing=settings.label_smoothing)
    if settings.temperature == 1:
        return F.kl_div(logits.log_softmax(dim=-1), targets[0], reduction="batchmean")
    return distillation_loss(logits, targets[0], settings.temperature)


def _average(teachers, name, before):
    own = [teacher for teacher in teachers if teacher.name == name]
    total_size = sum(teacher.size for teacher in own)
    average = dict(before)
    for key, tensor in before.items() if own else ():
        wide = torch.float32 if tensor.is_floating_point() else torch.float64
        total = torch.zeros_like(tensor, dtype=wide)
        for teacher in own:
            total += teacher.state[key].to(wide) * (teacher.size / total_size)
        average[key] = (total if tensor.is_floating_point() else total.round()).to(tensor.dtype)
    return average


class ComparePlain(FederationCallback):
    """Repeats each round as a plain loop, which must come to the same weights."""

    rounds = 0

    def on_federation_prepared(self, trainer, federation):
        self.plain = PlainRounds(federation)
        self.states = {name: copy_state(model) for name, model in federation.students.items()}

    def on_train_epoch_end(self, trainer, federation):
        self.rounds += 1
        self.states = self.plain.run(self.rounds, self.states)
        for name, model in federation.students.items():
            federations.assert_same(self.states[name], dict(model.state_dict()))
        effective = federation.metrics.get("certainty/effective_teachers")
        if effective is not None:
            assert effective == pytest.approx(self.plain.effective_teachers)


@pytest.mark.parametrize(
    ("algorithm", "changed", "fraction"),
    [
        (FedAvg(), False, 1.0),
        (FedDF(), False, 1.0),
        (FedDF(), True, 1.0),
        (paper_fedaux(), False, 1.0),
        (paper_fedaux(remember=True), False, 1.0),
        (paper_fedaux(remember=True), False, 0.6),
    ],
    ids=["FedAvg", "FedDF", "options", "FedAUX", "remember", "fraction"],
)
def test_rounds_come_to_the_weights_of_a_plain_loop(algorithm, changed, fraction, tmp_path):
    local, distilled = {"epochs": 2, "batch_size": 16}, {"lr": 1e-3}
    distilled |= local
    if changed:
        local |= {"augmentation": "crop_flip", "schedule": "cosine", "clip_norm": 0.5}
        local |= {"label_smoothing": 0.1, "batchnorm": "frozen", "class_weights": "balanced"}
        distilled |= {"augmentation": RAND, "schedule": "cosine", "clip_norm": 0.1}
        distilled |= {"temperature": 2.0}
    federation = federations.create(
        algorithm,
        {"resnet8": 2, "shufflenet": 2},
        participation=0.5,
        local=LocalTraining(**local),
        distillation=Distillation(**distilled),
    )
    data = federations.split(4, distill_fraction=fraction)
    compared = ComparePlain()
    federations.fit(tmp_path, federation, 2, data, callbacks=[compared])
    assert compared.rounds == 2


class CompareOwnModels(ComparePlain):
    """Compares what clients predict by models of their own with those of the plain loop."""

    def on_round_end(self, trainer, federation):
        data, local, predictions = federation.data, federation.local, []
        owners = torch.arange(40) % 3
        examples = replace(
            data.test_examples, clients=owners, client_names=tuple(data.client_names)
        )
        logits = torch.zeros(38, 10)  # of an evaluation with fewer batches
        found = federation.client_logits(examples, logits)
        for client in range(3):
            state = self.states["resnet8"] | self.plain.own.get(client, {})
            if local.fine_tuning:
                tuned = replace(local, epochs=local.fine_tuning)
                batches = data.client_batches(client, local.batch_size, self.rounds)
                state = self.plain._train("resnet8", state, tuned, batches, self.rounds)
            model = self.plain.models["resnet8"].eval()
            model.load_state_dict(state)
            rows = (owners[:38] == client).nonzero().flatten()
            with torch.no_grad():
                predictions.append(model(examples.inputs[rows]))
            assert torch.equal(found[rows], predictions[-1])
        unnamed = replace(examples, clients=None)
        assert federation.client_logits(unnamed, logits) is logits


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(FedBN(), {}), (FedAvg(), {"fine_tuning": 2, "label_smoothing": 0.1})],
    ids=["FedBN", "fine-tuned"],
)
def test_models_of_clients_are_those_of_a_plain_loop(algorithm, options, tmp_path):
    local = LocalTraining(batch_size=16, **options)
    compared = CompareOwnModels()
    federation = federations.create(algorithm, local=local)
    federations.fit(tmp_path, federation, 2, callbacks=[compared])
    assert compared.rounds == 2
    assert len(federation.state.client_states) == (0 if options else 3)
