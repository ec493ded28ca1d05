import pytest
import torch

from fedaux_pl.data import Digits
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.parser import FederationCLI
from paper.method_costs import BASE, Setting, count_flops, method_costs
from tests import federations

TINY = ["--config", "quickstart", "--model.model_options", "{width: 0.125, in_channels: 1}"]
TINY += ["--model.pretraining.epochs", "0", "--model.local.epochs", "1"]
TINY += ["--model.distillation.epochs", "1"]


@pytest.fixture(scope="module")
def tables():
    return {item.name: item for item in method_costs(BASE)}


def test_the_two_figures_of_the_text(tables):
    """24.58 MB of negatives; 19.79 MB of parameters, which the paper cuts off: 19.798."""
    negatives, parameters, *_ = tables["figures_of_the_text"].rows
    assert negatives[1:] == ["24.58", "24.576"]
    assert parameters[1:] == ["19.79", "19.798"]


def test_bytes_and_totals_by_hand(tables):
    sent = {row[0]: row[3] for row in tables["bytes"].rows}
    assert sent == {
        "model f": "19.64",
        "model f_i": "19.64",
        "scoring head w_i": "0.0041",  # 512 numbers of 8 bytes
        "h_0": "19.62",
        "D^- as features": "40.96",  # 20,000 x 512 x 4 bytes
    }
    others, fedaux = tables["total_bytes"].rows
    up, down = (float(value.replace(",", "")) for value in others[3:5])
    assert up == down == pytest.approx(8 * 100 * 19.636, rel=1e-4)
    more = float(fedaux[4].replace(",", "")) - down
    assert more == pytest.approx(20 * (19.615 + 40.96), rel=1e-3)


def test_operations_of_a_network_are_those_of_its_layers():
    """One convolution of 3x3, 3 to 4 channels on 8x8, and a linear layer from 4 to 10."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 10),
    )
    assert count_flops(model, torch.randn(5, 3, 8, 8)) == 2 * (64 * 4 * 27 + 40)


def test_operations(tables):
    flops = {row[0] + row[4]: float(row[3].replace(",", "")) for row in tables["operations"].rows}
    # a training step is a prediction and about twice as much backwards
    assert flops["local trainingall"] / flops["features of D_iFedAUX"] == pytest.approx(3, rel=0.01)
    one_teacher = flops["teachersFedDF, FedAUX"] / 8
    assert flops["teachersFedBE"] == pytest.approx((8 + 10 + 1) * one_teacher, rel=1e-3)
    assert flops["features of D_auxFedAUX"] == pytest.approx(one_teacher / 0.8, rel=1e-3)


def test_privacy_is_that_of_the_scoring(tables):
    def guarantee(item):
        return next(row for row in item.rows if row[0] == "privacy loss")[5]

    assert guarantee(tables["comparison"]) == "(0.1, 1e-05)-DP of D_i"
    size = {"classes": 10, "image_size": 8}
    no_noise = method_costs([*TINY, "--model.algorithm.privacy.epsilon", "null"], **size)
    assert guarantee(no_noise[0]) == "none: no noise"
    flawed = method_costs([*TINY, "--config", "scoring/authors"], **size)
    assert guarantee(flawed[0]).startswith("none: the norm bound")


@pytest.mark.parametrize(
    "scoring",
    [
        ["--config", "scoring/paper"],
        ["--config", "scoring/whitened_mean", "--model.algorithm.scoring.dimensions", "16"],
    ],
    ids=["paper", "whitened_mean"],
)
def test_traffic_is_what_a_run_counts(tmp_path, scoring):
    cli = FederationCLI("fit", [*TINY, *scoring, "--trainer.default_root_dir", str(tmp_path)])
    federation = cli.model
    federations.fit(tmp_path, federation, rounds=1, data=cli.datamodule)
    measured = federation.history[-1]

    auxiliary = len(Digits().auxiliary())
    setting = Setting(federation, round(0.2 * auxiliary), classes=10)
    traffic = setting.traffic()
    assert (traffic["D^-"] > 0) == ("scoring/paper" in scoring)
    sent = setting.selected * traffic["f"]
    assert measured["bytes/up_total"] == sent + 20 * traffic["w"]
    down = sum(traffic[part] for part in ("h_0", "map", "D^-"))
    assert measured["bytes/down_total"] == sent + 20 * down


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config", "methods/feddf"], "must have scores"),
        (["--model.clients", "{resnet8: 2, shufflenet: 2}"], "one architecture, but is .*shuffle"),
    ],
)
def test_mistakes(more, message):
    with pytest.raises(ConfigurationError, match=message):
        method_costs([*TINY, *more])
