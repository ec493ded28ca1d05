import copy

import pytest
import torch

from fedaux_pl.functional import distillation_loss, soft_labels
from fedaux_pl.modules import DistillationModule, OptimizerSettings
from tests.modules.conftest import (
    SMALL,
    assert_bf16_trains_like_32_bits,
    assert_round_trips,
    loader,
)


def small(**options):
    torch.manual_seed(1)
    return DistillationModule("resnet8", 10, model_options=SMALL, **options)


def teachers(labels, k=3):
    """K teachers who mostly know the label."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(k, len(labels), 10, generator=generator)
    return soft_labels(noise + 6 * torch.nn.functional.one_hot(labels, 10))


def test_bf16(trainer, digits):
    train = digits.train()
    targets = teachers(train.labels[:256])
    assert_bf16_trains_like_32_bits(trainer, small, train.inputs[:256], targets)


def test_the_student_learns_what_the_teachers_know(trainer, digits):
    train, test = digits.train(), digits.test()
    fit = trainer(max_epochs=4)
    fit.fit(
        small(optimizer=OptimizerSettings(lr=3e-3)),
        loader(train.inputs, teachers(train.labels), shuffle=True),
        loader(test.inputs, test.labels),
    )
    assert fit.callback_metrics["val/accuracy"] > 0.85
    assert fit.callback_metrics["train/agreement"] > 0.85
    assert all(f"``{name}``" in str(DistillationModule.__doc__) for name in fit.callback_metrics)


def test_a_fit_is_plain_training_on_the_divergence(trainer, digits):
    x, targets = digits.auxiliary()[:200], teachers(torch.arange(200) % 10)
    student = small()
    net = copy.deepcopy(student.model)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-5)
    for a, b in loader(x, targets, batch_size=128):
        optimizer.zero_grad()
        distillation_loss(net(a), b).backward()
        optimizer.step()
    trainer().fit(student, loader(x, targets, batch_size=128))
    for key, value in net.state_dict().items():
        torch.testing.assert_close(student.model.state_dict()[key], value)


def test_it_round_trips_through_a_checkpoint(trainer, digits, tmp_path):
    student = small(optimizer=OptimizerSettings(lr=1e-4), trained="head")
    data = loader(digits.auxiliary()[:64], teachers(torch.arange(64) % 10))
    assert_round_trips(trainer(), student, data, tmp_path / "d.ckpt")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            torch.randn(4, 10),
            r"got shape .*; expected probabilities .*: apply softmax\(dim=-1\) to",
        ),
        (torch.rand(4, 10), r"got shape \(4, 10\), from 0.* with sum 1 in each row: apply"),
        (
            torch.full((4, 10), torch.nan),
            "from nan to nan; .* NaN or infinity, lower the learning rate",
        ),
        (torch.full((4, 5), 0.2), r"got shape \(4, 5\), .* probabilities of shape \(N, 10\)"),
        (torch.arange(4), r"got shape \(4,\), .* probabilities of shape \(N, 10\)"),
    ],
)
def test_soft_labels_that_are_not_probabilities(targets, message):
    with pytest.raises(ValueError, match=message):
        small().check_batch((torch.rand(4, 1, 8, 8), targets))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_soft_labels_of_other_precision(dtype):
    targets = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).softmax(1).to(dtype)
    batch, student = (torch.rand(64, 1, 8, 8), targets), small()
    student.check_batch(batch)
    assert student.training_step(batch, 0).isfinite()
