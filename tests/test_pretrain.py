"""A fit that learns h_0 alone."""

import pytest
from pytorch_lightning.callbacks import Callback

from fedaux_pl.algorithms import FedAUX, FedAvg
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.pretrain import LearnH0
from tests.federations import create, fit, split
from tests.sites.loopback import apart


class CountRounds(Callback):
    """Counts the rounds that begin."""

    def __init__(self):
        self.rounds = 0

    def on_train_epoch_start(self, *_):
        self.rounds += 1


def test_h0_alone_is_learned_and_measured_without_a_round(tmp_path):
    federation = create(FedAUX(), kind=LearnH0)
    counted = CountRounds()
    trainer = fit(tmp_path, federation, 2, callbacks=[counted])
    assert (counted.rounds, trainer.max_epochs) == (0, 2)
    assert (list(federation.h0), federation.state.releases) == (["resnet8"], {})
    assert 0 < federation.accuracy["resnet8"] <= 1


def test_h0_is_not_measured_without_the_private_data(tmp_path):
    public, _ = apart(split(3))
    federation = create(FedAvg(pretrained=True), kind=LearnH0)
    fit(tmp_path, federation, 1, public)
    assert (list(federation.h0), federation.accuracy) == (["resnet8"], {})


@pytest.mark.parametrize("option", ["min_epochs", "min_steps"])
def test_a_minimum_of_rounds_is_refused_where_there_are_none(option, tmp_path):
    federation = create(FedAUX(), kind=LearnH0)
    with pytest.raises(ConfigurationError, match=f"`trainer.{option}` has no effect, .* remove it"):
        fit(tmp_path, federation, 1, **{option: 1})
    assert federation.h0 == {}
