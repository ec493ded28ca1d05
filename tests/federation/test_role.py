"""What a fit does in each role that needs no sites."""

import pytest
from pytorch_lightning.callbacks import Callback

from fedaux_pl.algorithms import FedAUX, FedAvg
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.role import LearnH0, Role
from tests.federations import assert_same, create, fit, run, split, weights
from tests.sites.loopback import apart


class CountRounds(Callback):
    """Counts the rounds that begin."""

    def __init__(self):
        self.rounds = 0

    def on_train_epoch_start(self, *_):
        self.rounds += 1


def test_h0_alone_is_learned_and_measured_without_a_round(tmp_path):
    federation = create(FedAUX())
    counted = CountRounds()
    federation.role = LearnH0()
    trainer = fit(tmp_path, federation, 2, callbacks=[counted])
    assert (counted.rounds, trainer.max_epochs) == (0, 2)
    assert (list(federation.h0), federation.state.releases) == (["resnet8"], {})
    assert 0 < federation.role.accuracy["resnet8"] <= 1


def test_the_same_trainer_then_runs_rounds_as_a_new_one(tmp_path):
    federation = create(FedAUX())
    federation.role = LearnH0()
    trainer = fit(tmp_path / "one", federation, 1)
    federation.role = Role()
    trainer.fit(federation, datamodule=trainer.datamodule)
    assert [entry["round"] for entry in federation.history] == [1]
    assert_same(weights(federation), weights(run(tmp_path / "other", FedAUX(), rounds=1)))


def test_h0_is_not_measured_without_the_private_data(tmp_path):
    public, _ = apart(split(3))
    federation = create(FedAvg(pretrained=True))
    federation.role = LearnH0()
    fit(tmp_path, federation, 1, public)
    assert (list(federation.h0), federation.role.accuracy) == (["resnet8"], {})


@pytest.mark.parametrize("option", ["min_epochs", "min_steps"])
def test_a_minimum_of_rounds_is_refused_where_there_are_none(option, tmp_path):
    federation = create(FedAUX())
    federation.role = LearnH0()
    with pytest.raises(ConfigurationError, match=f"got trainer.{option} = 1; .* LearnH0 runs no r"):
        fit(tmp_path, federation, 1, **{option: 1})
    assert federation.h0 == {}
