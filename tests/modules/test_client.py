import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaux_pl.modules import ClientModule, DistillationModule, OptimizerSettings
from tests.modules.conftest import (
    SMALL,
    assert_bf16_trains_like_32_bits,
    assert_round_trips,
    assert_same_weights,
    loader,
)


def small(**options):
    torch.manual_seed(1)
    return ClientModule("resnet8", 10, model_options=SMALL, **options)


def weights(client):
    return nn.utils.parameters_to_vector(client.parameters()).detach()


def test_bf16(trainer, batch):
    assert_bf16_trains_like_32_bits(trainer, small, *batch(256))


def test_it_learns_under_an_ordinary_trainer(trainer, digits, batch):
    test = digits.test()
    fit = trainer(max_epochs=4)
    fit.fit(
        small(optimizer=OptimizerSettings(lr=3e-3)),
        loader(*batch(), shuffle=True),
        loader(test.inputs, test.labels),
    )
    assert fit.callback_metrics["val/accuracy"] > 0.85
    assert fit.callback_metrics["train/loss"] < 1.0
    assert all(f"``{name}``" in str(ClientModule.__doc__) for name in fit.callback_metrics)


def test_a_fit_is_plain_training(trainer, batch):
    """The same steps written out: cross-entropy, Adam, BatchNorm in training mode."""
    data = loader(*batch(200))
    client = small()
    net = copy.deepcopy(client.model)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    trainer().fit(client, data)
    for key, value in net.state_dict().items():
        torch.testing.assert_close(client.model.state_dict()[key], value)


def test_the_loss_of_a_weighted_module_is_a_naive_sum(trainer, digits):
    x, y = digits.train().inputs[:8], digits.train().labels[:8]
    weights = torch.arange(8) / 3.5  # of mean 1
    client = small(weighted=True, label_smoothing=0.1).eval()
    total = 0.0
    for logits, label, weight in zip(client(x).detach(), y, weights, strict=True):
        targets = torch.full((10,), 0.01).index_fill(0, label, 0.91)
        total -= float(weight * (targets * logits.log_softmax(dim=0)).sum())
    assert client.training_step((x, y, weights), 0).item() == pytest.approx(total / 8, rel=1e-5)
    with pytest.raises(ValueError, match=r"got 2 entries; expected \(inputs, labels, weights\)"):
        trainer().fit(client.train(), loader(x, y))


def test_the_proximal_term_is_in_the_loss(batch):
    """After one plain step, loss(mu) - loss(0) = mu/2 |theta - theta_0|^2."""
    x, y = batch(32)
    client = small(mu=0.5)
    client.set_anchor()
    start = weights(client)
    with torch.no_grad():
        for p in client.parameters():
            p.add_(0.01 * torch.randn_like(p))
    client.eval()
    distance = (weights(client) - start).double().square().sum().item()
    plain = F.cross_entropy(client(x), y)
    loss = client.training_step((x, y), 0)
    assert (loss - plain).item() == pytest.approx(0.25 * distance, rel=1e-3)


def test_mu_0_is_plain_training_and_a_large_mu_holds_the_model(trainer, batch):
    def moved(mu):
        client = small(mu=mu)
        before = weights(client)
        trainer(max_epochs=2).fit(client, loader(*batch(512), batch_size=32))
        return (weights(client) - before).norm()

    assert moved(100.0) < 0.3 * moved(0.0)


def test_every_fit_sets_a_new_anchor(trainer, batch):
    client = small(mu=1.0)
    data = loader(*batch(64))
    trainer().fit(client, data)
    first = client.anchor[0].clone()
    trainer().fit(client, data)
    assert not torch.equal(client.anchor[0], first)


def correction_of(client, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator)
        for name, p in client.model.named_parameters()
        if p.requires_grad
    }


@pytest.mark.parametrize("train", ["full", "head"])
def test_a_correction_is_added_to_the_gradients_and_not_to_the_loss(batch, train):
    plain = small(trained=train)
    corrected = small(trained=train, corrected=True)
    losses = [client.training_step(batch(32), 0) for client in (plain, corrected)]
    change = correction_of(corrected)
    corrected.set_correction(change)
    losses.append(corrected.training_step(batch(32), 0))
    assert losses[0] == losses[1] == losses[2]
    losses[0].backward()
    losses[2].backward()
    for (name, p), q in zip(
        plain.model.named_parameters(), corrected.model.parameters(), strict=True
    ):
        if name in change:
            torch.testing.assert_close(q.grad, p.grad + change[name])
        else:
            assert q.grad is None
    addresses = [tensor.data_ptr() for tensor in corrected.corrections]
    other = correction_of(corrected, seed=3)
    corrected.set_correction(other)
    assert torch.equal(corrected.corrections[-1], other[list(other)[-1]])
    corrected.set_correction({})
    assert not any(tensor.any() for tensor in corrected.corrections)
    # captured steps read these tensors
    assert [tensor.data_ptr() for tensor in corrected.corrections] == addresses


def test_wrong_corrections():
    with pytest.raises(ValueError, match="create it with corrected=True"):
        small().set_correction({"head.weight": torch.zeros(10, 64)})
    small().set_correction({})  # nothing to add
    with pytest.raises(ValueError, match=r"no entry for head\.bias: give one for every"):
        small(corrected=True, trained="head").set_correction({"head.weight": torch.zeros(10, 64)})


@pytest.mark.parametrize("corrected", [False, True])
def test_a_resumed_fit_has_the_same_anchor_and_correction(trainer, batch, tmp_path, corrected):
    data = loader(*batch(128))
    options = {"corrected": corrected, "mu": 1.0, "optimizer": OptimizerSettings("sgd", lr=1e-2)}
    whole, half, rest = (small(**options) for _ in range(3))
    for client in (whole, half) if corrected else ():
        client.set_correction(correction_of(client))
    trainer(max_epochs=2).fit(whole, data)
    first = trainer(max_epochs=1)
    first.fit(half, data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_epochs=2).fit(rest, data, ckpt_path=tmp_path / "half.ckpt")
    assert_same_weights(whole, rest)
    assert ClientModule.load_from_checkpoint(tmp_path / "half.ckpt").corrected == corrected


def test_head_only_training_does_not_change_the_features(trainer, batch):
    client = small(trained="head", optimizer=OptimizerSettings(lr=1e-2))
    before = copy.deepcopy(client.state_dict())
    trainer(max_epochs=2).fit(client, loader(*batch()))
    changed = {key for key, value in client.state_dict().items() if not value.equal(before[key])}
    assert changed == {"model.head.weight", "model.head.bias"}  # BatchNorm's statistics included


def test_it_round_trips_through_a_checkpoint(trainer, batch, tmp_path):
    sgd = OptimizerSettings("sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    client = small(mu=0.1, trained="head", optimizer=sgd)
    path = tmp_path / "c.ckpt"
    again = assert_round_trips(trainer(), client, loader(*batch(64)), path)
    assert (again.mu, again.head_only) == (0.1, True)
    content = torch.load(path)
    assert content["hyper_parameters"] == {
        "model": "resnet8", "num_classes": 10, "mu": 0.1, "trained": "head", "optimizer": "sgd",
        "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "clip_norm": None, "model_options": SMALL,
        "corrected": False, "label_smoothing": 0.0, "batchnorm": "batch",
        "weighted": False,
    }  # fmt: skip
    other = ClientModule.load_from_checkpoint(path, optimizer=OptimizerSettings(lr=0.5))
    assert (other.head_only, other.optimizer_settings.lr) == (True, 0.5)


class Own(nn.Module):
    feature_dim = 64

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def features(self, x):
        return x.float().flatten(1) / 255

    def forward(self, x):
        return self.head(self.features(x))


def test_a_user_defined_model(trainer, batch, tmp_path):
    client = ClientModule(Own(), 10)
    fit = trainer()
    fit.fit(client, loader(*batch()))
    fit.save_checkpoint(tmp_path / "own.ckpt")
    again = ClientModule.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True, model=Own())
    assert_same_weights(client, again)
    with pytest.raises(TypeError, match="Linear lacks features, head, feature_dim"):
        ClientModule(nn.Linear(2, 2), 10)
    with pytest.raises(ValueError, match="model_options belong to a model given by name"):
        ClientModule(Own(), 10, model_options={"width": 2.0})


def test_predictions_are_probabilities(trainer, digits):
    x = digits.test().inputs
    with_labels = trainer().predict(small(), loader(x, digits.test().labels))
    alone = trainer().predict(small(), torch.utils.data.DataLoader(x, batch_size=64))
    for batches in (with_labels, alone):
        probabilities = torch.cat(batches)
        assert probabilities.shape == (len(x), 10)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1.0}, "mu: got -1.0; expected to be at least 0"),
        ({"trained": "tail"}, "got 'tail'; expected to be full or head"),
        ({"optimizer": "sgd"}, r"got 'sgd'; expected an object such as OptimizerSettings\("),
        (
            {"model": Own, "num_classes": 9},
            "model: got the class Own; expected an object: create one",
        ),
        ({"model": "resnet9"}, r"unknown model 'resnet9' \(did you mean resnet8\?\)"),
        ({"mu": None}, "mu: got None; expected to be at least 0"),
        ({"model_options": {"num_classes": 3}}, "num_classes is not one of model_options"),
        ({"model": Own(), "model_options": None, "num_classes": 5}, "has 10 outputs, but num_cl"),
    ],
)
def test_client_refuses(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ClientModule(**({"model": "resnet8", "model_options": SMALL} | options))


IMAGES = torch.linspace(0, 1, 4 * 64).view(4, 1, 8, 8)
LABELS = torch.tensor([0, 3, 9, 1])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((IMAGES, LABELS - 1), "labels: got -1 to 8; expected 0 ... 9: number the cl"),
        ((IMAGES, LABELS.float()), r"labels: got torch.float32 of shape \(4,\); expected class"),
        ((IMAGES, LABELS[:, None]), r"labels: got torch.int64 of shape \(4, 1\); expected class"),
        ((IMAGES.where(IMAGES > 0, torch.nan), LABELS), "inputs hold NaN or infinity: remove or"),
        ((IMAGES * 255, LABELS), r"images: got 0 to 255; expected \[0, 1\]: pass"),
        ((IMAGES * 4 - 2, LABELS), r"got -2 to 2; .* mean=0, std=1 for images that are stan"),
        ((IMAGES,), r"a batch: got 1 entry; expected \(inputs, labels\): add the labels"),
        ({"image": IMAGES, "label": LABELS}, "a batch: got a mapping of image, label; .*: return"),
        (IMAGES, r"a batch: got one tensor; expected \(inputs, labels\): add the labels"),
    ],
)
def test_refused_batches(batch, message):
    with pytest.raises(ValueError, match=message):
        small().check_batch(batch)


def test_batches_are_refused_under_a_trainer(trainer):
    data = loader(IMAGES, LABELS + 1)
    with pytest.raises(ValueError, match=r"got 1 to 10; .*: number the classes from 0"):
        trainer().fit(small(), data)
    with pytest.raises(ValueError, match=r"got 1 to 10; .*: number the classes from 0"):
        trainer().validate(small(), data, verbose=False)


def test_images_beyond_the_unit_range_are_refused_without_training(trainer):
    """They are not scaled: 255 may be an outlier of standardized images."""
    unscaled = IMAGES * 255
    message = r"images: got 0 to 255; expected \[0, 1\]"
    for module in (small(), DistillationModule("resnet8", 10, model_options=SMALL)):
        with pytest.raises(ValueError, match=message):
            module(unscaled)
        for verb in ("validate", "test"):
            with pytest.raises(ValueError, match=message):
                getattr(trainer(), verb)(module, loader(unscaled, LABELS), verbose=False)
        with pytest.raises(ValueError, match=message):
            trainer().predict(module, loader(unscaled, LABELS))
        assert torch.equal(module(IMAGES), module.model(IMAGES))


def test_standardized_images_are_inputs_of_a_model_that_does_not_normalize():
    options = SMALL | {"mean": 0.0, "std": 1.0}
    client = ClientModule("resnet8", 10, model_options=options)
    client.check_batch((IMAGES * 4 - 2, LABELS))
    assert client.training_step((IMAGES * 4 - 2, LABELS), 0).isfinite()
    with pytest.raises(ValueError, match="inputs hold NaN or infinity"):
        client.check_batch((IMAGES / 0, LABELS))


def test_only_the_first_batch_of_an_epoch_is_checked(trainer, digits, monkeypatch):
    """A check of values waits for a GPU, and takes a CPU as long as a layer."""
    checked = []
    monkeypatch.setattr(ClientModule, "check_batch", lambda self, batch: checked.append(batch))
    x, y = digits.train().inputs[:48], digits.train().labels[:48]
    trainer(max_epochs=2).fit(small(), loader(x, y, batch_size=16))
    assert len(checked) == 2


def test_mean_losses_of_many_batches(trainer):
    """In bfloat16 the sum of 300 batches of 4 samples would stop at 1,024."""
    network = nn.Linear(4, 3)
    network.features, network.head, network.feature_dim = nn.Identity(), nn.Identity(), 4
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    batches = loader(torch.zeros(1200, 4), torch.arange(1200) % 3, batch_size=4)
    fit = trainer(precision="bf16-true")
    fit.fit(ClientModule(network, 3, optimizer=OptimizerSettings(lr=1e-12)), batches, batches)
    for name in ("train/loss", "val/loss"):
        assert fit.callback_metrics[name].item() == pytest.approx(math.log(3), rel=0.01), name
