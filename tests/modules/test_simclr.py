import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from fedaux_pl.data import ViewSettings
from fedaux_pl.models import create_model, load_backbone
from fedaux_pl.modules import KNNAccuracy, OptimizerSettings, SimCLR
from tests.modules.conftest import (
    SMALL,
    assert_bf16_trains_like_32_bits,
    assert_round_trips,
    loader,
)


def small(**options):
    torch.manual_seed(1)
    defaults = {"views": ViewSettings(flip=0.0), "knn_k": 20}
    return SimCLR("resnet8", model_options=SMALL, **(defaults | options))


def nt_xent(z0, z1, temperature):
    """NT-Xent from its definition, pair by pair (Chen et al. 2020, eq. 1)."""
    z = F.normalize(torch.cat([z0, z1]), dim=1).tolist()
    n, total = len(z0), 0.0

    def similarity(a, b):
        return sum(p * q for p, q in zip(a, b, strict=True)) / temperature

    for i in range(2 * n):
        others = [similarity(z[i], z[k]) for k in range(2 * n) if k != i]
        total += torch.tensor(others).logsumexp(0).item() - similarity(z[i], z[(i + n) % (2 * n)])
    return total / (2 * n)


def test_the_loss_is_nt_xent_of_the_projected_views(digits):
    model = small(temperature=0.1).eval()
    first, second = digits.auxiliary()[:12], digits.auxiliary()[12:24]
    loss = model.training_step([[first, second], None], 0)
    z0, z1 = (model.projection_head(model(x)).detach() for x in (first, second))
    assert loss.item() == pytest.approx(nt_xent(z0, z1, 0.1), rel=1e-4)


def test_bf16(trainer, digits):
    assert_bf16_trains_like_32_bits(trainer, small, digits.auxiliary()[:256])


def test_it_learns_features_that_tell_classes_apart(trainer, digits):
    train, test = digits.train(), digits.test()
    probe = [loader(train.inputs, train.labels), loader(test.inputs, test.labels)]
    model = small(optimizer=OptimizerSettings(lr=3e-3), views=ViewSettings(flip=0.0, min_scale=0.5))
    fit = trainer(max_epochs=9, check_val_every_n_epoch=9)
    before = fit.validate(model, probe, verbose=False)[0]["val/knn_accuracy"]
    fit.fit(model, DataLoader(digits.auxiliary(), batch_size=128, shuffle=True), probe)
    after = fit.callback_metrics["val/knn_accuracy"].item()
    assert all(f"``{name}``" in str(SimCLR.__doc__) for name in fit.callback_metrics)
    assert after > before + 0.1


def test_batches_of_all_kinds(digits):
    model = small()
    x = digits.auxiliary()[:8]
    for batch in (x, [x], (x, torch.zeros(8)), ([x, x], torch.zeros(8), ["name"] * 8)):
        assert model.training_step(batch, 0).isfinite()
    with pytest.raises(ValueError, match="got 3 views"):
        model.training_step(([x, x, x],), 0)


def test_the_two_views_are_different_and_random(digits):
    model = small()
    x = digits.auxiliary()[:8]
    torch.manual_seed(0)
    views = model._two_views(x)
    assert views.shape == (16, *x.shape[1:])
    assert not torch.equal(views[:8], views[8:])
    torch.manual_seed(0)
    assert torch.equal(model._two_views(x), views)


def test_views_are_of_the_images_in_their_order(digits):
    model = small(views=ViewSettings(min_scale=1.0, flip=0.0, jitter=0.0, grayscale=0.0))
    x = digits.auxiliary()[:8].float() / 255
    views = model._two_views(x)
    distances = torch.cdist(views.flatten(1), x.flatten(1))
    assert distances.argmin(1).tolist() == [*range(8), *range(8)]
    assert torch.equal(model._two_views([x, x + 1]), torch.cat([x, x + 1]))


def test_bf16_does_not_round_the_similarities(digits):
    model = small().eval()
    views = [digits.auxiliary()[:16], digits.auxiliary()[16:32]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.training_step([views], 0)
        z0, z1 = (model.projection_head(model(torch.cat(views)))).float().detach().chunk(2)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(nt_xent(z0, z1, 0.2), rel=1e-5)


def test_a_given_model_keeps_its_head_and_shares_its_features(trainer, digits):
    own = create_model("resnet8", 10, **SMALL)
    model = SimCLR(own)
    before = own.conv1.weight.detach().clone()
    trainer().fit(model, DataLoader(digits.auxiliary(), batch_size=128))
    assert own.head.out_features == 10
    assert all(p.requires_grad for p in own.parameters())
    assert not torch.equal(own.conv1.weight, before)
    assert own(digits.test().inputs[:4]).shape == (4, 10)


def test_it_round_trips_through_a_checkpoint(trainer, digits, tmp_path):
    model, path = small(temperature=0.3), tmp_path / "s.ckpt"
    again = assert_round_trips(
        trainer(), model, DataLoader(digits.auxiliary()[:64], batch_size=32), path
    )
    assert (again.temperature, again.views.settings.flip) == (0.3, 0.0)
    assert torch.load(path)["hyper_parameters"] == {
        "model": "resnet8", "temperature": 0.3, "projection_dim": 128, "optimizer": "adam",
        "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "min_scale": 0.08, "flip": 0.0,
        "jitter": 0.8, "strength": 0.5, "grayscale": 0.2, "knn_k": 20, "model_options": SMALL,
        "clip_norm": None, "projection_width": None,
    }  # fmt: skip


def test_a_compiled_network_is_trained_without_its_wrapper(digits):
    network = create_model("resnet8", 10, in_channels=1, width=0.125)
    module = SimCLR(torch.compile(network, backend="eager"))
    assert module.training_step(digits.auxiliary()[:4], 0).isfinite()
    load_backbone(network, module.backbone_state())


def test_one_labeled_loader_is_split_and_an_unlabeled_one_measures_nothing(trainer, digits):
    test = digits.test()
    fit = trainer()
    fit.validate(small(), loader(test.inputs, test.labels), verbose=False)
    assert 0 < fit.callback_metrics["val/knn_accuracy"] <= 1
    # without labels, and with one sample in a batch, there are no queries
    for data in (loader(test.inputs), loader(test.inputs[:3], test.labels[:3], batch_size=1)):
        fit = trainer()
        fit.validate(small(), data, verbose=False)
        assert "val/knn_accuracy" not in fit.callback_metrics
    features = torch.cat(fit.predict(small(), loader(test.inputs)))
    assert features.shape == (len(test), small().backbone.feature_dim)
    with pytest.raises(ValueError, match=r"temperature: got .*; expected to be positive"):
        small(temperature=0.0)


def test_two_loaders_by_name_are_neighbors_and_queries(trainer, digits):
    parts = (digits.train(), digits.test())
    loaders = [loader(part.inputs[:256], part.labels[:256]) for part in parts]
    results = [
        trainer().validate(small(), given, verbose=False)[0]
        for given in (loaders, dict(zip("ab", loaders, strict=True)))
    ]
    assert results[0] == results[1]


UNIT = torch.linspace(0, 1, 4 * 64).view(4, 1, 8, 8)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (UNIT * 255, r"images: got 0 to 255; expected \[0, 1\]: pass uint8 imag"),
        ((UNIT * 2 - 1,), r"images: got -1 to 1; expected \[0, 1\]"),
        (UNIT.where(UNIT > 0, torch.nan), "the images hold NaN or infinity"),
        (((UNIT, UNIT * 2 - 1),), r"got -1 to 1; .* mean=0, std=1"),  # two views
        ({"image": UNIT}, "a batch: got a mapping of image; expected inputs, .*: return tuples"),
    ],
)
def test_refused_batches(batch, message):
    with pytest.raises(ValueError, match=message):
        small().check_batch(batch)


def test_images_beyond_the_unit_range_are_refused_without_training(trainer):
    message = r"images: got 0 to 255; expected \[0, 1\]"
    data = loader(UNIT * 255, torch.arange(4))
    with pytest.raises(ValueError, match=message):
        small()(UNIT * 255)
    with pytest.raises(ValueError, match=message):
        trainer().validate(small(), data, verbose=False)
    with pytest.raises(ValueError, match=message):
        trainer().predict(small(), data)


def test_batches_of_one_image_are_a_mistake_unless_it_is_the_last():
    with pytest.raises(ValueError, match="batches of at least 2, not of 1"):
        small().training_step(UNIT[:1], 0)
    assert small().training_step(UNIT[:1], 7).isfinite()


def test_knn_accuracy_is_that_of_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 16, generator=generator)
    labels = torch.randint(0, 4, (400,), generator=generator)
    features = centers[labels] + 1.2 * torch.randn(400, 16, generator=generator)
    metric = KNNAccuracy(k=7, temperature=0.1)
    metric.update(features[:150], labels[:150], query=False)
    metric.update(features[150:300], labels[150:300], query=False)
    metric.update(features[300:], labels[300:], query=True)
    normal = F.normalize(features).numpy()
    reference = KNeighborsClassifier(
        7,
        metric="cosine",
        weights=lambda distance: torch.tensor((1 - distance) / 0.1).exp().numpy(),
    ).fit(normal[:300], labels[:300])
    expected = reference.score(normal[300:], labels[300:])
    assert 0.5 < expected < 1.0
    assert metric.compute().item() == pytest.approx(expected)


def test_knn_accuracy_with_fewer_neighbors_than_k():
    metric = KNNAccuracy(k=200)
    metric.update(torch.eye(3), torch.arange(3), query=False)
    assert not metric.ready
    with pytest.raises(ValueError, match="no neighbors or no queries"):
        metric.compute()
    metric.update(torch.eye(3) + 0.1, torch.arange(3), query=True)
    assert metric.ready
    assert metric.compute().item() == 1.0
    for wrong, message in (({"k": 0}, "k: got 0"), ({"temperature": 0}, "temperature: got 0")):
        with pytest.raises(ValueError, match=message):
            KNNAccuracy(**wrong)
