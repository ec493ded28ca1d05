"""The cache of the preparation is used by runs with the same settings only; scores."""

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.federation import preparation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.functional import shrink_to_mean
from fedaux_pl.scoring import Centered, Logistic, Mean, Sigmoid, Standardized, Whitened
from fedaux_pl.scoring.records import pack, unpack
from tests.federations import FewDigits, assert_same, create, fit, measured, run, split, weights
from tests.paper import paper_fedaux, paper_scoring


class Counted:
    """Counts how often h_0 is learned and how often clients release their heads."""

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


def test_a_second_run_uses_the_cache(tmp_path, counted):
    first = run(tmp_path, paper_fedaux(), 1)
    assert counted.since() == (1, 1)
    assert len(files(tmp_path, "h0-resnet8")) == len(files(tmp_path, "scoring-heads")) == 1
    second = run(tmp_path, paper_fedaux(), 1)
    assert counted.since() == (0, 0)
    assert_same(weights(first), weights(second))
    assert measured(first) == measured(second)
    for one, other in zip(first.heads, second.heads, strict=True):
        assert one.release == other.release
    # h_0 serves every method
    run(tmp_path, FedDF(pretrained=True), 1)
    run(tmp_path, FedAvg(pretrained=True), 1, participation=0.5)
    assert counted.since() == (0, 0)


def test_damaged_files_are_replaced(tmp_path, counted):
    first = run(tmp_path, paper_fedaux(), 1)
    for path in (tmp_path / "cache").iterdir():
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    counted.since()
    with pytest.warns(UserWarning, match="cannot be used") as warned:
        second = run(tmp_path, paper_fedaux(), 1)
    assert counted.since() == (1, 1)
    messages = [str(w.message) for w in warned if "is built again" in str(w.message)]
    assert len(messages) == 2
    assert "h0-resnet8" in messages[0]
    assert "scoring-heads" in messages[1]
    assert_same(weights(first), weights(second))
    fit(tmp_path, create(paper_fedaux()), 0)
    assert counted.since() == (0, 0)


@pytest.mark.parametrize(
    ("options", "data", "again"),
    [
        ({"pretraining": Pretraining(epochs=1, batch_size=20, lr=2e-3)}, {}, (1, 1)),
        ({"seed": 1}, {}, (1, 1)),
        ({"model_options": {"width": 0.25}}, {}, (1, 1)),
        ({"algorithm": paper_fedaux(epsilon=1.0)}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(scorer=Logistic(0.2))}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(secret_noise=True)}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(scorer=Mean())}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(feature_map=Centered())}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(norm_bound="unit")}, {}, (0, 1)),
        # what the server does with a release needs no new one
        ({"algorithm": paper_fedaux(calibration=Standardized(2.0))}, {}, (0, 0)),
        ({"algorithm": paper_fedaux(calibration=Sigmoid(1e-3), shrink=True)}, {}, (0, 0)),
        ({}, {"alpha": 0.5}, (0, 1)),
        ({}, {"seed": 1}, (0, 1)),
        ({}, {"negatives": 0.3}, (0, 1)),
        ({}, {"private": FewDigits(train=60)}, (0, 1)),
        ({}, {"auxiliary": FewDigits(auxiliary=39)}, (1, 1)),
        ({"train": "head"}, {}, (0, 0)),
        ({"participation": 0.5}, {}, (0, 0)),
    ],
)
def test_other_settings_need_a_new_preparation(tmp_path_factory, counted, options, data, again):
    """In a folder with the cache of the default settings."""
    root = tmp_path_factory.getbasetemp() / "prepared"
    fit(root, create(paper_fedaux()), 0)  # the preparation alone
    counted.since()
    fit(root, create(**({"algorithm": paper_fedaux()} | options)), 0, split(**data))
    assert counted.since() == again


def test_the_architecture_of_each_client_matters(tmp_path, counted):
    """The same architectures, clients and data, but client 1 has another architecture."""
    for clients, again in (
        ({"resnet8": 1, "shufflenet": 2}, (2, 1)),
        ({"resnet8": 2, "shufflenet": 1}, (0, 1)),
    ):
        federation = create(paper_fedaux(), clients)
        fit(tmp_path, federation, 0)
        assert counted.since() == again
        dims = [federation.students[name].feature_dim for name in federation.architectures]
        assert [len(head.weight) for head in federation.heads] == dims


def test_secret_noise_is_released_once(tmp_path, counted):
    """It differs in every release, so that a second release would be noticed."""
    first, second = (create(paper_fedaux(secret_noise=True)) for _ in range(2))
    for federation in (first, second):
        fit(tmp_path, federation, 1)
    assert counted.since() == (1, 1)
    assert_same(weights(first), weights(second))
    elsewhere = create(paper_fedaux(secret_noise=True))
    fit(tmp_path / "elsewhere", elsewhere, 0)
    assert not torch.equal(elsewhere.heads[0].weight, first.heads[0].weight)


def test_clients_draw_different_noise(tmp_path):
    noisy, exact = create(paper_fedaux(epsilon=10.0)), create(paper_fedaux(epsilon=None))
    for federation in (noisy, exact):
        fit(tmp_path, federation, 0)
    noise = [a.weight - b.weight for a, b in zip(noisy.heads, exact.heads, strict=True)]
    for index, one in enumerate(noise):
        assert 0.5 < one.std() / noisy.heads[index].release.sigma < 2
        assert all(not torch.allclose(one, other) for other in noise[:index])


def test_scores_are_those_of_the_released_heads(tmp_path):
    """s_i(x) = sigmoid(w . h_0(x) / R) + xi, with features clipped to norm R."""
    federation = create(paper_fedaux(epsilon=None, calibration=Sigmoid(1e-3)))
    fit(tmp_path, federation, 0)
    net = federation.students["resnet8"].eval()  # before the first round, its h is h_0
    with torch.no_grad():
        for part, x in (
            ("distill", federation.data.distill_inputs),
            ("test", federation.data.test_examples.inputs),
        ):
            features = net.features(x).double()
            for client, head in enumerate(federation.heads):
                norms = features.norm(dim=1, keepdim=True).clamp(min=head.public_map.bound)
                expected = torch.sigmoid((features / norms) @ head.weight) + 1e-3
                torch.testing.assert_close(
                    federation.scores[part][client].double(), expected, atol=1e-6, rtol=1e-5
                )


def test_standardized_scores_of_whitened_means(tmp_path):
    """The map is fitted to D_aux; test data are standardized by the statistics of D_distill."""
    federation = create(
        FedAUX(
            epsilon=None,
            feature_map=Whitened(dimensions=4, whitening=1.0),
            calibration=Standardized(2.0),
            shrink=False,
        )
    )
    fit(tmp_path, federation, 0)
    data = federation.data
    net = federation.students["resnet8"].eval()  # before the first round, its h is h_0

    def unit_rows(x):
        with torch.no_grad():
            rows = (net.features(x).double() - center) @ directions
        return rows / rows.norm(dim=1, keepdim=True)

    with torch.no_grad():
        auxiliary = net.features(data.auxiliary_inputs).double()
    center = auxiliary.mean(dim=0)
    _, values, vectors = torch.linalg.svd(auxiliary - center, full_matrices=False)
    directions = vectors[:4].T / values[:4] * len(auxiliary) ** 0.5
    distill, test = (unit_rows(x) for x in (data.distill_inputs, data.test_examples.inputs))
    for client in range(3):
        mean = unit_rows(data.client(client).inputs).mean(dim=0)
        reference = distill @ mean
        for part, rows in (("distill", distill), ("test", test)):
            z = (rows @ mean - reference.mean()) / reference.std(correction=0)
            torch.testing.assert_close(
                federation.scores[part][client], (2 * z).exp().float(), rtol=1e-3, atol=1e-5
            )


def test_clients_of_an_architecture_share_its_map(tmp_path):
    """In files, too: their size does not grow with the number of clients."""
    heads = []
    for clients in (1, 6):
        algorithm = FedAUX(feature_map=Whitened(dimensions=8), norm_bound="negatives")
        federation = create(algorithm, {"resnet8": clients})
        fit(tmp_path / str(clients), federation, 0)
        heads.append(federation.heads)
    sizes = [files(tmp_path / name, "scoring-heads")[0].stat().st_size for name in ("1", "6")]
    one_map = sum(t.numel() * 8 for t in heads[0][0].public_map.tensors().values())
    assert sizes[1] < sizes[0] + 5 * one_map / 2
    assert torch.equal(heads[1][0].public_map.directions, heads[1][5].public_map.directions)


@pytest.mark.parametrize(
    "scoring",
    [
        paper_scoring(),
        paper_scoring(epsilon=None),
        paper_scoring(norm_bound="private"),
        paper_scoring(scorer=Logistic(normalized=False)),
        paper_scoring(scorer=Mean(), feature_map=Centered()),
        paper_scoring(scorer=Mean(), feature_map=Whitened(3), norm_bound="unit"),
        paper_scoring(feature_map=Whitened(3), norm_bound=2.5),
    ],
)
def test_unpacked_heads_equal_the_packed_ones(scoring):
    generator = torch.Generator().manual_seed(0)
    heads = []
    for client, dim in enumerate((5, 9)):
        own, negatives = (torch.randn(n, dim, generator=generator) for n in (20, 30))
        public = scoring.fit_map(negatives, negatives)
        heads.append(scoring.release(client, own, negatives, public, noise_seed=client))
    for before, after in zip(heads, unpack(pack(heads), scoring), strict=True):
        assert torch.equal(before.weight, after.weight)
        assert before.client == after.client
        assert before.release == after.release
        assert before.public_map.bound == after.public_map.bound
        assert before.public_map.unit == after.public_map.unit
        x = torch.randn(4, 5 + 4 * before.client, generator=generator)
        assert torch.equal(before.logits(x), after.logits(x))


def test_vectors_are_shrunk_among_clients_of_one_architecture(tmp_path):
    """Heads keep the released vectors; scores use the shrunk ones."""
    options = {
        "epsilon": 30.0,
        "scorer": Mean(),
        "norm_bound": "unit",
        "calibration": Standardized(1.0),
    }
    clients = {"resnet8": 3, "shufflenet": 2}
    scores = {}
    for shrink in (False, True):
        federation = create(paper_fedaux(**options, shrink=shrink), clients)
        fit(tmp_path, federation, 0)
        scores[shrink] = federation.scores["distill"].double()
    inputs, heads = federation.data.distill_inputs, federation.heads
    assert not torch.allclose(scores[False], scores[True])
    for name, members in (("resnet8", (0, 1, 2)), ("shufflenet", (3, 4))):
        with torch.no_grad():
            features = federation.students[name].eval().features(inputs)
        weights = torch.stack([heads[i].weight for i in members])
        sigmas = torch.tensor([heads[i].release.sigma for i in members], dtype=torch.float64)
        for i, guess in zip(members, shrink_to_mean(weights, sigmas), strict=True):
            logits = heads[i].public_map.rows(features) @ guess
            z = (logits - logits.mean()) / logits.std(correction=0)
            torch.testing.assert_close(scores[True][i], z.exp(), atol=1e-5, rtol=1e-4)
