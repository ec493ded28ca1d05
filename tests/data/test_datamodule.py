from dataclasses import replace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.data import (
    Digits,
    Examples,
    FederatedDataModule,
    Glosses,
    NpzImages,
    Source,
    TextFiles,
)
from fedaux_pl.errors import ConfigurationError, DataError
from fedaux_pl.federation.checks import check_data
from fedaux_pl.models import create_model
from fedaux_pl.modules import ClientModule


class Counting(Source):
    """Sample i is an image with pixels equal to i, which identifies it in every split.

    The last pixel is the same in all samples: other data have another ``corner``.
    """

    def __init__(self, n=200, shape=(1, 2, 2), labeled=True, corner=0):
        self.n, self.shape, self.labeled, self.corner = n, shape, labeled, corner
        self.loads = 0

    def train(self):
        self.loads += 1
        x = torch.arange(self.n).to(torch.uint8).view(-1, 1, 1, 1)
        x = x.expand(-1, *self.shape).contiguous()
        x[..., -1, -1] = self.corner
        labels = torch.arange(self.n) % 4 if self.labeled else None
        return Examples(x, labels, tuple("abcd"))

    def test(self):
        return self.train()


def ready(**options):
    defaults = {"private": Counting(), "auxiliary": Counting(100, corner=1)}
    module = FederatedDataModule(**(defaults | {"num_clients": 7, "alpha": 0.1} | options))
    module.setup()
    return module


def identity(inputs):
    return inputs[:, 0, 0, 0].tolist()


def test_every_private_sample_has_one_owner_and_keeps_its_label():
    module = ready()
    clients = [module.client(i) for i in range(7)]
    assert sorted(sum((identity(c.inputs) for c in clients), [])) == list(range(200))
    assert module.client_sizes == [len(c) for c in clients]
    assert max(module.client_sizes) - min(module.client_sizes) <= 1
    for client in clients:
        assert (client.labels == client.inputs[:, 0, 0, 0].long() % 4).all()
        assert client.classes == tuple("abcd") == module.classes
    assert module.input_shape == (1, 2, 2)


def test_negatives_and_distillation_data_are_a_disjoint_split_of_the_auxiliary_data():
    module = ready()
    negatives, distill = identity(module.negative_inputs), identity(module.distill_inputs)
    assert (len(negatives), len(distill)) == (20, 80)
    assert sorted(negatives + distill) == list(range(100))
    assert negatives != list(range(20))


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 80), (0.5, 40), (1e-9, 2)])
def test_a_fraction_of_the_distillation_data_is_drawn_once(fraction, count):
    whole, part = ready(seed=1), ready(seed=1, distill_fraction=fraction)
    assert len(part.distill_inputs) == count
    assert {*identity(part.distill_inputs)} <= {*identity(whole.distill_inputs)}
    assert identity(part.negative_inputs) == identity(whole.negative_inputs)
    rows = part.auxiliary_rows["distill"]
    assert identity(part.auxiliary_inputs[rows]) == identity(part.distill_inputs)
    assert (part.settings() == whole.settings()) == (fraction == 1)
    other = ready(seed=2, distill_fraction=0.5)
    assert identity(other.distill_inputs) != identity(part.distill_inputs)


def test_seed_determines_all_splits_and_orders():
    one, two, other = ready(seed=1), ready(seed=1), ready(seed=2)
    assert identity(one.negative_inputs) == identity(two.negative_inputs)
    assert identity(one.negative_inputs) != identity(other.negative_inputs)
    assert all(
        torch.equal(a, b) for a, b in zip(one.client_indices, two.client_indices, strict=True)
    )
    assert not torch.equal(one.client_indices[0], other.client_indices[0])

    def order(module, **options):
        return sum((identity(x) for x, _ in module.client_batches(3, 4, **options)), [])

    assert order(one) == order(two)
    assert order(one) != order(one, seed=1)


def test_client_batches_hold_the_data_of_that_client():
    module = ready(num_clients=5)
    batches = module.client_batches(2, batch_size=16)
    seen = sum((identity(x) for x, _ in batches), [])
    assert sorted(seen) == identity(module.client(2).inputs)
    assert all((y == x[:, 0, 0, 0].long() % 4).all() for x, y in batches)
    single = ready(private=Counting(8), num_clients=8)  # clients with a single sample still train
    assert len(list(single.client_batches(0))) == 1


@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_the_classes_of_each_client_are_balanced(alpha):
    """At alpha = 0.01 most clients hold one class: all its samples have the weight 1."""
    module = ready(num_clients=5, alpha=alpha, validation_fraction=0.2)
    for client in range(5):
        totals, count = torch.zeros(4), 0
        for _, labels, weights in module.client_batches(client, 4, balanced=True):
            totals.index_add_(0, labels, weights)
            count += len(labels)
        own = module.client(client).targets.unique()
        expected = torch.zeros(4).index_fill_(0, own, count / len(own))
        torch.testing.assert_close(totals, expected)


def test_distillation_inputs_and_targets_stay_aligned():
    module = ready()
    targets = module.distill_inputs[:, 0, 0, 0].float()
    seen = []
    for x, y in module.distill_batches(targets, batch_size=16, seed=3):
        assert (x[:, 0, 0, 0].float() == y).all()
        seen += identity(x)
    assert sorted(seen) == identity(module.distill_inputs)


def test_setup_loads_once():
    module = ready()
    module.setup("test")
    assert module.private.loads == 2  # training and test data
    assert module.auxiliary.loads == 1


def test_a_trainer_tests_on_the_test_data():
    module = FederatedDataModule(Digits(), Digits(), num_clients=3)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    client = ClientModule("resnet8", 10, model_options={"in_channels": 1, "width": 0.125})
    (metrics,) = trainer.test(client, module, verbose=False)
    test = Digits().test()
    client.eval()
    with torch.no_grad():
        accuracy = (client(test.inputs).argmax(1) == test.labels).float().mean()
    assert metrics["test/accuracy"] == pytest.approx(accuracy.item())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_clients": 0}, ValueError, "num_clients: got 0; expected to be at least 1"),
        ({"num_clients": 201}, ValueError, "use at most 100 clients"),
        ({"alpha": 0.0}, ValueError, "alpha: got 0.0; expected to be positive and finite"),
        ({"negative_fraction": 1.0}, ValueError, r"got 1.0; expected to lie in \[0, 1\)"),
        ({"distill_fraction": 0}, ValueError, r"distill_fraction: got 0; .* lie in \(0, 1\]"),
        ({"distill_fraction": 1.5}, ValueError, r"distill_fraction: got 1.5; .* lie in \(0, 1\]"),
        (
            {"distill_fraction": "all"},
            ValueError,
            "distill_fraction: got 'all'; expected to lie in",
        ),
        ({"split": "shard"}, ValueError, "split: got 'shard'; expected to be equal, unequal or sh"),
        ({"auxiliary": Counting(1)}, DataError, "1 auxiliary samples leave"),
        ({"auxiliary": Counting(9, (3, 2, 2))}, DataError, r"\(1, 2, 2\) .* \(3, 2, 2\)"),
        ({"private": Counting(labeled=False)}, DataError, "Counting has no labels"),
    ],
)
def test_wrong_federated_data(options, error, message):
    with pytest.raises(error, match=message):
        ready(**options)


def test_errors_before_setup_without_auxiliary_data_and_for_unknown_clients():
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        FederatedDataModule(Counting()).client(0)
    without = ready(auxiliary=None)
    with pytest.raises(DataError, match="no auxiliary data"):
        _ = without.distill_inputs
    with pytest.raises(IndexError):
        without.client(7)


class Given(Source):
    """A source of these inputs with two classes."""

    def __init__(self, inputs):
        self.inputs = inputs

    def train(self):
        return Examples(self.inputs, torch.arange(len(self.inputs)) % 2, ("a", "b"))

    def test(self):
        return self.train()


def pixels(low=0.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(16, 1, 8, 8, generator=generator) * (high - low) + low


@pytest.mark.parametrize(
    ("private", "auxiliary", "message"),
    [
        (
            Digits(),
            Glosses(),
            r"uint8 of shape \(1, 8, 8\) and torch.int32 of shape \(32,\); expected",
        ),
        (
            Digits(),
            Given(pixels()),
            r"uint8 .*\.float32 of shape \(1, 8, 8\); .*: choose .* convert",
        ),
        (Digits(), Digits(size=6), r"\(1, 6, 6\); .* set `size`, `channels` or `max_length`"),
    ],
)
def test_private_and_auxiliary_data_are_of_one_kind(private, auxiliary, message):
    with pytest.raises(DataError, match=message):
        FederatedDataModule(private, auxiliary).setup()


DIGITS = [str(number) for number in range(10)]
PICTURES = np.zeros((4, 8, 8), np.uint8)


def of_arrays(labels, tmp_path):
    return (PICTURES, labels), (PICTURES, labels)


def of_npz(labels, tmp_path):
    arrays = {"train_x": PICTURES, "test_x": PICTURES, "train_y": labels, "test_y": labels}
    np.savez(tmp_path / "a.npz", **arrays)
    return NpzImages(tmp_path / "a.npz")


def of_table(labels, tmp_path):
    rows = "".join(f"some text,{label}\n" for label in labels)
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\n{rows}")
    return TextFiles(path, test_path=path)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(of_arrays, np.uint8), (of_arrays, np.uint64), (of_npz, np.int16), (of_table, np.int64)],
)
def test_integer_labels_index_the_agreed_classes(make, dtype, tmp_path):
    labels = np.array([6, 7, 9, 6], dtype)
    for classes in (DIGITS, [f"digit {number}" for number in range(10)]):
        data = ready(private=make(labels, tmp_path), auxiliary=None, num_clients=1, classes=classes)
        assert data.client(0).targets.tolist() == [6, 7, 9, 6] == data.test_examples.labels.tolist()
        assert data.classes == tuple(classes)
        assert data.private.class_order == classes  # its form is part of cache keys of texts
        with pytest.raises(DataError, match="labels: got"):
            ready(private=make(labels + 1, tmp_path), auxiliary=None, classes=classes)


def test_names_of_integers_are_names_where_labels_are_text(tmp_path):
    for classes in (DIGITS[::-1], ["1", "2", "6", "7", "9"]):
        for labels, make in ((np.array(list("1797")), of_arrays), ([1, 7, 9, 7], of_table)):
            data = ready(
                private=make(labels, tmp_path), auxiliary=None, num_clients=1, classes=classes
            )
            assert [classes[i] for i in data.test_examples.labels] == list("1797")
    # whatever its labels, a table of another site is read alike
    with pytest.raises(DataError, match="labels: got '0'; expected the classes 1, 2, "):
        ready(private=of_table([0, 1], tmp_path), auxiliary=None, classes=["1", "2", "3"])


def test_parts_with_other_classes_are_joined_by_name():
    class Fewer(Counting):
        def test(self):
            return Examples(self.train().inputs[:2], torch.tensor([0, 1]), ("b", "d"))

    assert ready(private=Fewer()).test_examples.labels.tolist() == [1, 3]


def test_a_single_class_is_refused():
    class One(Counting):
        def train(self):
            examples = super().train()
            return Examples(examples.inputs, examples.labels * 0 + 2, examples.classes)

    with pytest.raises(DataError, match="at least 2 classes, but all 200 samples are of class 'c'"):
        ready(private=One())


def test_pixels_that_no_model_expects():
    bad = pixels()
    bad[3, 0, 2, 2] = float("nan")
    with pytest.raises(DataError, match=r"got NaN or infinity in 1 of 16 samples, .* position 3"):
        Given(bad).train()
    usual = create_model("resnet8", 2, in_channels=1, width=0.125)
    plain = create_model("resnet8", 2, in_channels=1, width=0.125, mean=0.0, std=1.0)
    for inputs in (pixels(high=255.0), pixels(low=-1.0)):
        module = FederatedDataModule(Given(inputs), Given(inputs + 1e-3), num_clients=2)
        module.setup()
        with pytest.raises(ValueError, match=r"images: got .*; expected \[0, 1\]"):
            module.check_model(usual)
        module.check_model(plain)  # for images that are normalized already
        with pytest.raises(DataError, match="images to learn h_0 from by SimCLR: got"):
            module.pretrain_batches(4)
    good = FederatedDataModule(Given(pixels()), Given(pixels(seed=1)), num_clients=2)
    good.setup()
    good.check_model(usual)
    assert len(good.pretrain_batches(4)) == 4


class Sites(Counting):
    """Samples of three clients, of which the first has half."""

    def __init__(self, *args, names=("a", "b", "c"), validation=None, **options):
        super().__init__(*args, **options)
        self.names, self.given = names, validation

    def train(self):
        owners = torch.arange(self.n) % 4 % 3
        return replace(super().train(), clients=owners, client_names=self.names)

    def test(self):
        return super().train()

    def validation(self):
        return self.given


def test_given_clients_hold_their_own_samples():
    module = ready(private=Sites(), num_clients=20)
    assert (module.num_clients, module.has_given_clients) == (3, True)
    assert module.client_names == ["a", "b", "c"]
    assert module.client_sizes == [100, 50, 50]
    assert identity(module.client(1).inputs) == list(range(1, 200, 4))
    assert (module.client(1).labels == 1).all()
    settings = module.settings()
    assert (settings["num_clients"], settings["alpha"]) == (3, None)
    for other in ({"alpha": 5.0}, {"num_clients": 2}, {"private": Sites(names=tuple("xyz"))}):
        assert ready(**({"private": Sites()} | other)).settings() == settings

    class Moved(Sites):
        def train(self):
            examples = super().train()
            return replace(examples, clients=examples.clients.roll(1))

    # other clients, the same samples: a run must not resume
    assert ready(private=Moved()).settings()["contents"] != settings["contents"]
    dirichlet = ready(num_clients=2)
    assert dirichlet.client_names == ["client 0", "client 1"]
    assert not dirichlet.has_given_clients


def test_a_federation_has_the_clients_of_the_data():
    module = ready(private=Sites(names=("site_a", "site_b", "site_c")))
    check_data(module, FedAvg(), {"resnet8": 2, "shufflenet": 1})
    with pytest.raises(
        ConfigurationError,
        match=r"the data name 3 clients \(site_a, site_b, site_c\), but the federation has 20 "
        r".*: set clients to \{'resnet8': 3\}",
    ):
        check_data(module, FedAvg(), {"resnet8": 20})


@pytest.mark.parametrize("private", [Counting(), Sites()])
def test_a_share_of_every_client_is_held_out(private):
    plain, module = ready(private=private), ready(private=private, validation_fraction=0.1)
    held = identity(module.validation_examples.inputs)
    for client in range(plain.num_clients):
        own, rest = (identity(data.client(client).inputs) for data in (plain, module))
        missing = set(own) - set(rest)
        assert len(missing) == round(0.1 * len(own))
        assert missing <= set(held)
        assert set(rest) < set(own)
        batches = module.client_batches(client, batch_size=4)
        assert not set(sum((identity(x) for x, _ in batches), [])) & set(held)
    validation = module.validation_examples
    assert (validation.labels == validation.inputs[:, 0, 0, 0].long() % 4).all()
    assert module.evaluation_examples is validation
    (batch,) = module.val_dataloader()
    assert identity(batch[0]) == held
    assert sum(len(y) for _, y in module.test_dataloader()) == 200
    other = ready(private=private, validation_fraction=0.1, seed=1)
    assert identity(other.validation_examples.inputs) != held


def test_given_validation_data():
    given = Counting(12, corner=3).train()
    module = ready(private=Sites(validation=given))
    assert module.validation_examples is module.evaluation_examples is given
    assert module.client_sizes == [100, 50, 50]
    assert module.settings()["validation"] == "given"
    assert any(inputs is given.inputs for inputs in module.all_inputs)
    with pytest.raises(DataError, match=r"Sites gives 12 validation samples, but .* 0\.1"):
        ready(private=Sites(validation=given), validation_fraction=0.1)
    with pytest.raises(DataError, match="private training and validation data: got"):
        ready(private=Sites(validation=Counting(12, (1, 3, 3)).train()))
    with pytest.raises(DataError, match="no labels for its validation data"):
        ready(private=Sites(validation=Counting(12, labeled=False).train()))
    with pytest.raises(ValueError, match=r"validation_fraction: got 1; .*in \[0, 1\)"):
        ready(validation_fraction=1)


def test_settings_name_validation_data_only_if_there_are_any():
    plain, held = ready(), ready(validation_fraction=0.1)
    given = ready(private=Sites(validation=Counting(12, corner=3).train()))
    assert "validation" not in plain.settings()
    assert plain.settings()["contents"].keys() == {"private", "test", "auxiliary"}
    assert plain.validation_examples is None
    assert plain.evaluation_examples is plain.test_examples
    assert held.settings()["validation"] == 0.1
    assert given.settings()["contents"]["validation"].startswith("keyed:")
    assert held.fingerprints["validation"] != given.fingerprints["validation"]
