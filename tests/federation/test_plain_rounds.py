"""Rounds are those of a plain PyTorch loop, without Lightning and the engine, bit for bit."""

import copy
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.federation.settings import Distillation, LocalTraining
from fedaux_pl.functional import pack_logits, unpack_logits
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.state_dicts import copy_state
from tests import federations
from tests.paper import paper_fedaux

Teacher = namedtuple("Teacher", "client name size state")


class PlainRounds:
    """The rounds of a federation, after its preparation, as a plain loop."""

    def __init__(self, federation):
        self.federation, self.data = federation, federation.data
        self.models = {name: copy.deepcopy(model) for name, model in federation.students.items()}
        self.memory = {}  # for each client its last round and its logits then

    def run(self, round_, states):
        """Runs a round from the given states of the students, and returns their new states."""
        local, distillation = self.federation.local, self.federation.distillation
        teachers = []
        for client in self.federation.select_clients(round_):
            name = self.federation.architectures[client]
            batches = self.data.client_batches(client, local.batch_size, seed=round_)
            state = self._train(name, states[name], local, batches)
            teachers.append(Teacher(client, name, self.data.client_sizes[client], state))
        students = {name: _average(teachers, name, state) for name, state in states.items()}
        if self.federation.algorithm.distills:
            targets = self._soft_labels(round_, teachers)
            for name, state in students.items():
                batches = self.data.distill_batches(targets, distillation.batch_size, seed=round_)
                students[name] = self._train(name, state, distillation, batches)
        return students

    def _train(self, name, state, settings, batches):
        model = self.models[name]
        model.load_state_dict(state)
        model.train()
        optimizer = OptimizerSettings(
            settings.optimizer, settings.lr, settings.momentum, settings.weight_decay
        ).create(model.parameters())
        for epoch in range(settings.epochs):
            batches.set_epoch(epoch)
            for x, y in batches:
                optimizer.zero_grad()
                _loss(model(x), y).backward()
                optimizer.step()
        return {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}

    @torch.no_grad()
    def _predict(self, name, state):
        model = self.models[name].eval()
        model.load_state_dict(state)
        return model(self.data.distill_inputs).float()

    def _soft_labels(self, round_, teachers):
        """softmax(sum_i s_i f_i / sum_i s_i) over the teachers i, remembered ones included."""
        algorithm, scores = self.federation.algorithm, self.federation.scores.get("distill")
        own = [(t.client, 1.0, self._predict(t.name, t.state)) for t in teachers]
        remembered = []
        for client in sorted(self.memory.keys() - {teacher.client for teacher in teachers}):
            last_round, logits = self.memory[client]
            remembered.append((client, algorithm.discount ** (round_ - last_round), logits))
        weighted, weight = torch.zeros(()), torch.zeros(())
        for client, discount, logits in own + remembered:
            score = torch.ones_like(logits[:, 0]) if scores is None else scores[client]
            weighted = weighted + (score * discount)[:, None] * logits
            weight = weight + score * discount
        if algorithm.remember:
            self.memory |= {i: (round_, unpack_logits(pack_logits(f))) for i, _, f in own}
        return (weighted / weight[:, None]).softmax(dim=-1)


def _loss(logits, targets):
    if targets.is_floating_point():
        return F.kl_div(logits.log_softmax(dim=-1), targets, reduction="batchmean")
    return F.cross_entropy(logits, targets)


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


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedDF(), paper_fedaux(), paper_fedaux(remember=True, discount=0.9)],
    ids=["FedAvg", "FedDF", "FedAUX", "remember"],
)
def test_rounds_come_to_the_weights_of_a_plain_loop(algorithm, tmp_path):
    federation = federations.create(
        algorithm,
        {"resnet8": 2, "shufflenet": 2},
        participation=0.5,
        local=LocalTraining(epochs=2, batch_size=16),
        distillation=Distillation(epochs=2, batch_size=16, lr=1e-3),
    )
    compared = ComparePlain()
    federations.fit(tmp_path, federation, rounds=2, callbacks=[compared])
    assert compared.rounds == 2
