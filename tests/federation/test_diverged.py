"""Inputs and learning rates that lead to NaN are named, not what breaks later because of them."""

import pytest
import torch

from fedaux_pl.algorithms import Answer, FedAUX, FedAvg, FedDF
from fedaux_pl.data import Examples
from fedaux_pl.errors import DataError
from fedaux_pl.federation.settings import Distillation, LocalTraining
from tests.federations import FewDigits, create, fit, split


class Floats(FewDigits):
    """The digits as floats, multiplied by a factor; one pixel may be replaced."""

    def __init__(self, factor=1 / 255, pixel=None):
        super().__init__()
        self.factor, self.pixel = factor, pixel

    def auxiliary(self):
        return super().auxiliary() * self.factor

    def _first(self, examples, count):
        examples = super()._first(examples, count)
        inputs = examples.inputs * self.factor
        if self.pixel is not None:
            inputs[3, 0, 0, 0] = self.pixel
        return Examples(inputs, examples.targets, examples.classes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Floats(pixel=torch.nan), "got NaN or infinity"),
        (Floats(factor=1.0), r"got 0 to 255; expected \[0, 1\]"),
        (Floats(pixel=-1.0), r"got -1 to 1; expected \[0, 1\]"),
    ],
)
def test_images_that_would_be_misread_are_refused_before_any_training(tmp_path, source, message):
    federation = create(FedAUX())
    with pytest.raises((ValueError, DataError), match=message):
        fit(tmp_path, federation, 1, split(private=source, auxiliary=source))
    assert not federation.h0


def test_floats_are_images(tmp_path):
    federation = create(FedAvg())
    fit(tmp_path, federation, 1, split(private=Floats(), auxiliary=None))
    assert len(federation.history) == 1


# One step in an epoch: its loss is finite, and the weights are not usable afterwards.
HUGE = {"batch_size": 1000, "lr": 1e30}


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (
            FedDF(),
            {"local": LocalTraining(**HUGE)},
            r"the clients' predictions hold NaN or infinity in round 1: lower local\.lr",
        ),
        (
            FedDF(),
            {"distillation": Distillation(**HUGE)},
            r"the students' predictions hold NaN after this round: lower distillation\.lr",
        ),
        (
            FedAvg(),
            {"local": LocalTraining(**HUGE)},
            "or local.lr in a method without distillation",
        ),
        (
            FedAvg(),
            {"local": LocalTraining(lr=1e10, epochs=2)},
            r"of ClientModule at client \d became .* lower local\.lr .*, which is 1e\+10",
        ),
    ],
)
def test_a_learning_rate_that_is_too_large_is_named(tmp_path, algorithm, options, message):
    with pytest.raises(FloatingPointError, match=message):
        fit(tmp_path, create(algorithm, **options), 1)


def test_a_method_without_a_server_step_is_not_told_to_change_it(tmp_path, monkeypatch):
    """A client of another process has diverged, which that process reports."""
    fit(tmp_path, federation := create(FedAvg()), 1)

    def diverge(updates, answers, theta, processes, head_only):
        return {key: tensor * torch.nan for key, tensor in theta.items()}

    monkeypatch.setattr("fedaux_pl.federation.server.average_updates", diverge)
    theta = {name: model.state_dict() for name, model in federation.students.items()}
    averages = federation.server.average(theta, [], [Answer(0, "resnet8", 10, 1.0)])
    assert averages["resnet8"]["head.bias"].isnan().all()
