"""What was prepared once is found again; what belongs to another run is not taken for it."""

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.engine import LocalClients, Pretraining, preparation
from fedaux_pl.engine.preparation import pack, unpack
from fedaux_pl.modules import Scoring
from tests.federations import FewDigits, assert_same, create, fit, measured, run, split, weights


class Counted:
    """Counts how often h_0 is learned and how often clients are asked for their heads."""

    def __init__(self, monkeypatch):
        self.pretrained = self.released = 0
        create, prepare = preparation.create_pretraining, LocalClients.prepare

        def counted_pretraining(*args, **kwargs):
            self.pretrained += 1
            return create(*args, **kwargs)

        def counted_prepare(*args, **kwargs):
            self.released += 1
            return prepare(*args, **kwargs)

        monkeypatch.setattr(preparation, "create_pretraining", counted_pretraining)
        monkeypatch.setattr(LocalClients, "prepare", counted_prepare)

    def since(self):
        result = (self.pretrained, self.released)
        self.pretrained = self.released = 0
        return result


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def files(root, kind):
    return sorted((root / "cache").glob(f"{kind}-*.pt"))


def test_a_second_run_finds_everything(tmp_path, counted):
    first = run(tmp_path, FedAUX(), 1)
    assert counted.since() == (1, 1)
    assert len(files(tmp_path, "h0-resnet8")) == len(files(tmp_path, "scoring-heads")) == 1
    second = run(tmp_path, FedAUX(), 1)
    assert counted.since() == (0, 0)
    assert_same(weights(first), weights(second))
    assert measured(first) == measured(second)
    for one, other in zip(first.heads, second.heads, strict=True):
        assert one.release == other.release
    # h_0 serves every method
    run(tmp_path, FedDF(pretrained=True), 1)
    run(tmp_path, FedAvg(pretrained=True), 1, participation=0.5)
    assert counted.since() == (0, 0)


def test_damaged_files_are_noticed_and_made_again(tmp_path, counted):
    first = run(tmp_path, FedAUX(), 1)
    for path in (tmp_path / "cache").iterdir():
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    counted.since()
    with pytest.warns(UserWarning, match="cannot be used") as warned:
        second = run(tmp_path, FedAUX(), 1)
    assert counted.since() == (1, 1)
    said = [str(w.message) for w in warned if "is built again" in str(w.message)]
    assert len(said) == 2
    assert "h0-resnet8" in said[0]
    assert "scoring-heads" in said[1]
    assert_same(weights(first), weights(second))
    fit(tmp_path, create(FedAUX()), 0)
    assert counted.since() == (0, 0)


@pytest.mark.parametrize(
    ("options", "data", "again"),
    [
        ({"pretraining": Pretraining(epochs=1, batch_size=20, lr=2e-3)}, {}, (1, 1)),
        ({"seed": 1}, {}, (1, 1)),
        ({"model_options": {"width": 0.25}}, {}, (1, 1)),
        ({"algorithm": FedAUX(epsilon=1.0)}, {}, (0, 1)),
        ({"algorithm": FedAUX(regularization=0.2)}, {}, (0, 1)),
        ({"algorithm": FedAUX(secret_noise=True)}, {}, (0, 1)),
        ({}, {"alpha": 0.5}, (0, 1)),
        ({}, {"seed": 1}, (0, 1)),
        ({}, {"negatives": 0.3}, (0, 1)),
        ({}, {"private": FewDigits(train=60)}, (0, 1)),
        ({}, {"auxiliary": FewDigits(auxiliary=39)}, (1, 1)),
        ({"train": "head"}, {}, (0, 0)),
        ({"participation": 0.5}, {}, (0, 0)),
    ],
)
def test_other_settings_are_prepared_anew(tmp_path_factory, counted, options, data, again):
    """In a folder where the defaults were prepared before."""
    root = tmp_path_factory.getbasetemp() / "prepared"
    fit(root, create(FedAUX()), 0)  # the preparation alone
    counted.since()
    fit(root, create(**({"algorithm": FedAUX()} | options)), 0, split(**data))
    assert counted.since() == again


def test_who_has_which_architecture_matters(tmp_path, counted):
    """The same architectures, clients and data, but another one's head for client 1."""
    for clients, again in (
        ({"resnet8": 1, "shufflenet": 2}, (2, 1)),
        ({"resnet8": 2, "shufflenet": 1}, (0, 1)),
    ):
        federation = create(FedAUX(), clients)
        fit(tmp_path, federation, 0)
        assert counted.since() == again
        dims = [federation.students[name].feature_dim for name in federation.architectures]
        assert [len(head.weight) for head in federation.heads] == dims


def test_secret_noise_is_released_once(tmp_path, counted):
    """Drawn from the operating system, it differs each time: nobody is asked a second time."""
    first, second = (create(FedAUX(secret_noise=True)) for _ in range(2))
    for federation in (first, second):
        fit(tmp_path, federation, 1)
    assert counted.since() == (1, 1)
    assert_same(weights(first), weights(second))
    elsewhere = create(FedAUX(secret_noise=True))
    fit(tmp_path / "elsewhere", elsewhere, 0)
    assert not torch.equal(elsewhere.heads[0].weight, first.heads[0].weight)


def test_every_client_has_noise_of_its_own(tmp_path):
    noisy, exact = create(FedAUX(epsilon=10.0)), create(FedAUX(epsilon=None))
    for federation in (noisy, exact):
        fit(tmp_path, federation, 0)
    noise = [a.weight - b.weight for a, b in zip(noisy.heads, exact.heads, strict=True)]
    for index, one in enumerate(noise):
        assert 0.5 < one.std() / noisy.heads[index].release.sigma < 2
        assert all(not torch.allclose(one, other) for other in noise[:index])


def test_scores_are_those_of_the_released_heads(tmp_path):
    """s_i(x) = sigmoid(w . h_0(x) / R) + xi, features longer than R cut to it, written out."""
    federation = create(FedAUX(epsilon=None, xi=1e-3))
    fit(tmp_path, federation, 0)
    net = federation.students["resnet8"].eval()  # before the first round, its h is h_0
    with torch.no_grad():
        for part, x in (
            ("distill", federation.data.distill_inputs),
            ("test", federation.data.test_examples.inputs),
        ):
            features = net.features(x).double()
            for client, head in enumerate(federation.heads):
                norms = features.norm(dim=1, keepdim=True).clamp(min=head.bound)
                expected = torch.sigmoid((features / norms) @ head.weight) + 1e-3
                torch.testing.assert_close(
                    federation.scores[part][client].double(), expected, atol=1e-6, rtol=1e-5
                )


@pytest.mark.parametrize(
    "scoring",
    [Scoring(), Scoring(epsilon=None), Scoring(norm_bound="private"), Scoring(normalized=False)],
)
def test_heads_survive_packing(scoring):
    generator = torch.Generator().manual_seed(0)
    heads = [
        scoring.release(
            client,
            torch.randn(20, dim, generator=generator),
            torch.randn(30, dim, generator=generator),
            noise_seed=client,
        )
        for client, dim in enumerate((5, 9))
    ]
    for before, after in zip(heads, unpack(pack(heads), scoring), strict=True):
        assert torch.equal(before.weight, after.weight)
        assert (before.client, before.bound, before.xi) == (after.client, after.bound, after.xi)
        assert before.release == after.release
