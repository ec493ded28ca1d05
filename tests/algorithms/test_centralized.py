"""Centralized training: a plain training loop on all private data, whatever the split."""

import json

import pytest
import torch

from fedaux_pl import Centralized, Federation
from fedaux_pl.cli.entry import main
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.functional import dirichlet_partition
from tests.algorithms.test_equivalences import by_hand, start_of
from tests.federations import FewDigits, assert_same, create, fit, split, weights


def test_it_is_a_plain_training_loop_on_all_data(tmp_path):
    """Two rounds of an epoch each, with one Adam: two epochs of ordinary training."""
    data = split(1, alpha=0.01)
    federation = create(
        Centralized(),
        {"resnet8": 1},
        participation=0.4,  # the only client always takes part
        local=LocalTraining(batch_size=32),
    )
    fit(tmp_path, federation, 2, data)
    expected = by_hand(start_of(federation, data), data, 2, carry=True)
    assert_same(weights(federation), expected)
    seen = torch.cat([labels for _, labels in data.client_batches(0, 32, seed=1)])
    assert seen.bincount().tolist() == FewDigits().train().targets.bincount().tolist()


@pytest.mark.parametrize("alpha", [0.01, 100.0])
def test_one_client_gets_every_sample(alpha):
    labels = torch.arange(1000) ** 2 % 7  # unequal classes
    [part] = dirichlet_partition(labels, num_clients=1, alpha=alpha, seed=0)
    assert part.tolist() == list(range(1000))


def test_with_pretraining_it_starts_from_h_0(tmp_path):
    federation = create(Centralized(pretrained=True), {"resnet8": 1})
    assert federation.algorithm.name == "Centralized+P"
    fit(tmp_path, federation, 1, split(1))
    assert federation.h0


@pytest.mark.parametrize("clients", [{"resnet8": 20}, {"resnet8": 1, "shufflenet": 1}])
def test_several_clients_or_architectures_are_refused(clients):
    with pytest.raises(ConfigurationError, match=r"model.clients '\{resnet8: 1\}'\)$") as error:
        Federation(Centralized(), clients)
    assert "\n" not in str(error.value)


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = [
        *("--config=methods/centralized", "--trainer.accelerator=cpu", "--trainer.max_epochs=2"),
        *("--model.model_options={width: 0.125}", "--trainer.enable_progress_bar=false"),
        *("--data.private=tests.federations.FewDigits", "--data.alpha=0.01"),
    ]
    assert main(["fit", *tiny, "--model.clients={resnet8: 2}"]) == 1
    assert "Centralized trains one model on all data, but clients is" in capsys.readouterr().err
    assert main(["fit", *tiny]) == 0
    [folder] = (tmp_path / "logs" / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rounds"], summary["method"]) == (2, "Centralized")
