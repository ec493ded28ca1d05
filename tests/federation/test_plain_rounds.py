"""Rounds are those of a plain PyTorch loop, bit for bit."""

import pytest

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.federation.settings import Distillation, LocalTraining
from fedaux_pl.modules.state_dicts import copy_state
from tests import federations
from tests.federation.plain_rounds import PlainRounds
from tests.paper import paper_fedaux


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
