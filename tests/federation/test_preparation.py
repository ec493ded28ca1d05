"""The cache of the preparation is used by runs with the same settings only; scores."""

from unittest.mock import MagicMock

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.data import Examples
from fedaux_pl.data.input_checks import note
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation.cache import describe_model
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.federation.releases import ReleaseCache
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.functional import derive_seed, shrink_to_mean
from fedaux_pl.models import complete_options, create_model
from fedaux_pl.scoring import (
    Centered,
    Logistic,
    Mean,
    MeanScoring,
    Privacy,
    Sigmoid,
    Standardized,
    Step,
    Whitened,
    pack,
    unpack,
)
from tests.federations import (
    FewDigits,
    assert_same,
    create,
    fit,
    measured,
    run,
    split,
    weights,
)
from tests.paper import Parts, paper_fedaux, paper_scoring


class Counted:
    """Counts how often h_0 is learned and how often clients release their heads."""

    def __init__(self, monkeypatch):
        self.pretrained = self.released = 0
        learn, prepare = H0Source._learn, LocalClients.prepare

        def counted_pretraining(*args):
            self.pretrained += 1
            return learn(*args)

        def counted_prepare(*args):
            self.released += 1
            return prepare(*args)

        monkeypatch.setattr(H0Source, "_learn", counted_pretraining)
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
    assert len(files(tmp_path, "h0-resnet8")) == len(files(tmp_path, "simulated-heads")) == 1
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
    for path in (tmp_path / "cache").glob("*.pt"):
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
    assert "simulated-heads" in messages[1]
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
        ({"algorithm": paper_fedaux(secret=True)}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(scorer=Mean())}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(feature_map=Centered())}, {}, (0, 1)),
        ({"algorithm": paper_fedaux(norm_bound="unit")}, {}, (0, 1)),
        # what the server does with a release needs no new one
        ({"algorithm": paper_fedaux(calibration=Standardized(2.0))}, {}, (0, 0)),
        ({"algorithm": paper_fedaux(calibration=Sigmoid(1e-3))}, {}, (0, 0)),
        ({}, {"alpha": 0.5}, (0, 1)),
        ({}, {"seed": 1}, (0, 1)),
        ({}, {"negative_fraction": 0.3}, (0, 1)),
        ({}, {"private": FewDigits(train=60)}, (0, 1)),
        ({}, {"auxiliary": FewDigits(auxiliary=39)}, (1, 1)),
        ({"trained": "head"}, {}, (0, 0)),
        ({"participation": 0.5}, {}, (0, 0)),
    ],
)
def test_other_settings_need_a_new_preparation(tmp_path_factory, counted, options, data, again):
    """In a folder with the cache of the default settings."""
    root = tmp_path_factory.getbasetemp() / "prepared"
    if not root.exists():
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


def secret(**options):
    return create(paper_fedaux(secret=True, epsilon=1.0, **options))


def test_secret_noise_needs_features_that_depend_on_one_record(tmp_path, monkeypatch):
    def refuse(model, inputs):
        raise PrivacyError("h_0 mixes records")

    monkeypatch.setattr("fedaux_pl.federation.clients.predict_private_features", refuse)
    fit(tmp_path, create(paper_fedaux()), 0)  # a simulation
    with pytest.raises(PrivacyError, match="h_0 mixes records"):
        fit(tmp_path, secret(), 0)


def test_every_run_draws_secret_noise_anew_and_says_so(tmp_path, counted, capsys):
    first, second = secret(), secret()
    for federation in (first, second):
        fit(tmp_path, federation, 1)
    assert counted.since() == (1, 2)  # h_0 is in the cache
    assert not torch.equal(first.heads[0].weight, second.heads[0].weight)
    assert first.heads[0].release.is_private
    assert not files(tmp_path, "simulated-heads")
    line = "every run costs (epsilon 1, delta 1e-05) again, and nothing adds runs up: real sites "
    assert capsys.readouterr().out.count(line) == 2
    assert any(text.startswith(line) for text in first.privacy())
    assert not any(text.startswith(line) for text in run(tmp_path, paper_fedaux(), 0).privacy())


class NeedsTensor(Mean):
    """A scorer of a user that needs a public tensor."""

    def tensors(self):
        return {"center": torch.zeros(1)}


def test_a_first_release_may_need_public_tensors(tmp_path):
    fit(tmp_path, federation := secret(scorer=NeedsTensor()), 0)
    assert len(federation.heads) == 3


def test_a_release_of_other_code_is_refused(tmp_path, monkeypatch):
    """A fix of the sensitivity must not praise what the code before it has released."""
    with monkeypatch.context() as patch:
        patch.setattr(Logistic, "sensitivity", lambda self, n, m: 1e-3)
        wrong = create(paper_fedaux())
        fit(tmp_path, wrong, 0)
    with pytest.raises(PrivacyError, match=r"client 0 has noise .* made by other code"):
        fit(tmp_path, create(paper_fedaux()), 0)
    monkeypatch.setattr("fedaux_pl.scoring.frozen_settings.RELEASE_VERSION", "next")
    federation = create(paper_fedaux())
    fit(tmp_path, federation, 0)  # another version releases anew
    assert federation.heads[0].release.sensitivity > wrong.heads[0].release.sensitivity


def test_nothing_on_disk_tells_the_secret_noise(tmp_path):
    """What an attacker computes from the seed, the settings and all files is not the noise."""
    exact, hidden, seeded = create(paper_fedaux(epsilon=None)), secret(), create(paper_fedaux())
    for federation in (exact, hidden, seeded):
        fit(tmp_path, federation, 1)
    vector = exact.heads[0].weight
    attempt = hidden.algorithm.release.scoring.privacy
    for seed in range(50):  # the attack that finds the noise of a simulated release
        derived = derive_seed(seed, SeedPurpose.RELEASE_NOISE, 0)
        record = hidden.heads[0].release
        guess, _ = attempt.release(vector, record.sensitivity, noise_seed=derived)
        assert not torch.allclose(guess, hidden.heads[0].weight)
    record = seeded.heads[0].release
    derived = derive_seed(0, SeedPurpose.RELEASE_NOISE, 0)
    found, _ = seeded.algorithm.release.scoring.privacy.release(vector, record.sensitivity, derived)
    assert torch.equal(found, seeded.heads[0].weight)
    assert not seeded.heads[0].release.is_private
    assert hidden.heads[0].release.is_private


def test_a_replaced_record_changes_its_clients_release_alone(tmp_path):
    """From the data module to the head: h_0, the map and all other clients stay as they are."""

    class Replaced(FewDigits):
        def train(self):
            examples = super().train()
            inputs = examples.inputs.clone()
            inputs[5] = 255 - inputs[5]
            return Examples(inputs, examples.targets, examples.classes)

    federations = []
    for source in (FewDigits(), Replaced()):
        federation = create(FedAUX(privacy=Privacy(None), scoring=MeanScoring(8)))
        fit(tmp_path, federation, 0, split(private=source))
        federations.append(federation)
    one, other = federations
    [owner] = [i for i, own in enumerate(one.data.client_indices) if 5 in own.tolist()]
    for head, changed in zip(one.heads, other.heads, strict=True):
        assert torch.equal(head.public_map.directions, changed.public_map.directions)
        moved = (head.weight - changed.weight).norm()
        size = one.data.client_sizes[head.client]
        assert (0 < moved <= 2 / size) if head.client == owner else moved == 0


def test_private_rows_among_the_auxiliary_data_are_no_secret(tmp_path, capsys):
    class Shared(FewDigits):
        def auxiliary(self):
            return torch.cat([super().auxiliary(), self.train().inputs[:2]])

    data, federation = split(auxiliary=Shared()), create(paper_fedaux(norm_bound="private"))
    note.cache_clear()
    fit(tmp_path, federation, 0, data)
    assert "note: 2 of 42 auxiliary samples are also private" in capsys.readouterr().err
    [line] = [line for line in federation.privacy() if "2 auxiliary samples" in line]
    assert line.startswith("NOT private")
    assert "the norm bound is the largest of private data" in line  # every flaw is told
    with pytest.raises(PrivacyError, match="2 auxiliary samples are private training samples too"):
        fit(tmp_path, secret(), 0, data)


ENCODER = {
    "config": {
        "model_type": "bert",
        "vocab_size": 30,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    },
}
CHANGED = {
    "width": 0.25,
    "norm": "group",
    "mean": 0.1,
    "std": 0.7,
    "in_channels": 1,
    "groups": 3,
    "pooling": "cls",
    "pad_id": 1,
    "config": ENCODER["config"] | {"hidden_dropout_prob": 0.5},
}


def option_changes():
    """Options of architectures that change the features but not always the weights."""
    for name in ("resnet8", "mobilenetv2", "shufflenet", "encoder"):
        for option in complete_options(name):
            if option in CHANGED:
                yield name, option
        # the others say where weights come from, what a mask is, and how long a text is
        rest = set(complete_options(name)) - set(CHANGED)
        assert rest <= {"source", "pretrained", "mask_id", "length"}


@pytest.mark.parametrize(("name", "option"), option_changes())
def test_every_model_option_is_part_of_the_keys(name, option):
    """h_0 and heads of another setting are never found: those of {mean: 0, std: 1} were."""
    base = ENCODER if name == "encoder" else {"width": 0.125}
    keys = []
    for own in (base, base | {option: CHANGED[option]}):
        run = MagicMock(seed=0, architectures=[name])
        run.data.fingerprints = {"auxiliary": ""}
        run.data.client_fingerprints.return_value = run.data.classes = []
        run.data.negative_inputs = torch.zeros(1)
        options = {name: complete_options(name, **own)}
        torch.manual_seed(0)
        model = create_model(name, 2, **own)
        key_of_h0 = H0Source(run, Pretraining(), options)._key(name, model)
        cache = ReleaseCache(run, options, folder=None)
        keys.append((key_of_h0, cache._describe(Step(paper_scoring()), {name: model})))
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] != keys[1][1]


def test_settings_of_layers_are_part_of_the_keys():
    """Such as the dropout of an encoder whose configuration is a file."""
    torch.manual_seed(0)
    model = create_model("resnet8", 2, width=0.125)
    before = describe_model({}, model, head=False)
    model.head = torch.nn.Linear(model.feature_dim, 3)  # changes no features
    assert describe_model({}, model, head=False) == before
    model.normalize.mean += 0.1  # not in the state dict
    assert describe_model({}, model, head=False) != before


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
            ("evaluation", federation.data.test_examples.inputs),
        ):
            features = net.features(x).double()
            for client, head in enumerate(federation.heads):
                norms = features.norm(dim=1, keepdim=True).clamp(min=head.public_map.bound)
                expected = torch.sigmoid((features / norms) @ head.weight) + 1e-3
                torch.testing.assert_close(
                    federation.evidence.certainty[part][client].double(),
                    expected,
                    atol=1e-6,
                    rtol=1e-5,
                )


def test_standardized_scores_of_whitened_means(tmp_path):
    """The map is fitted to D_aux; test data are standardized by the statistics of D_distill."""
    federation = create(
        FedAUX(
            privacy=Privacy(None),
            scoring=MeanScoring(dimensions=4, whitening=1.0, sharpness=2.0),
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
        for part, rows in (("distill", distill), ("evaluation", test)):
            z = (rows @ mean - reference.mean()) / reference.std(correction=0)
            torch.testing.assert_close(
                federation.evidence.certainty[part][client],
                (2 * z).exp().float(),
                rtol=1e-3,
                atol=1e-5,
            )


def test_clients_of_an_architecture_share_its_map(tmp_path):
    """In files, too: their size does not grow with the number of clients."""
    heads = []
    for clients in (1, 6):
        algorithm = FedAUX(scoring=Parts(Mean(), Whitened(dimensions=8)))
        federation = create(algorithm, {"resnet8": clients})
        fit(tmp_path / str(clients), federation, 0)
        heads.append(federation.heads)
    sizes = [files(tmp_path / name, "simulated-heads")[0].stat().st_size for name in ("1", "6")]
    one_map = sum(t.numel() * 8 for t in heads[0][0].public_map.tensors().values())
    assert sizes[1] < sizes[0] + 5 * one_map / 2
    assert torch.equal(heads[1][0].public_map.directions, heads[1][5].public_map.directions)


@pytest.mark.parametrize(
    "scoring",
    [
        paper_scoring(epsilon=None),
        paper_scoring(norm_bound="private"),
        paper_scoring(scorer=Mean(), feature_map=Centered()),
        paper_scoring(scorer=Mean(), feature_map=Whitened(3), norm_bound="unit"),
    ],
)
def test_unpacked_heads_equal_the_packed_ones(scoring):
    generator = torch.Generator().manual_seed(0)
    heads = []
    for client, dim in enumerate((5, 9)):
        own, negatives = (torch.randn(n, dim, generator=generator) for n in (20, 30))
        public = scoring.fit_map(negatives, negatives)
        heads.append(Step(scoring).release(client, own, negatives, public, noise_seed=client))
    for before, after in zip(heads, unpack(pack(heads), Step(scoring)), strict=True):
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
    federation = create(paper_fedaux(**options), clients)
    fit(tmp_path, federation, 0)
    scores = federation.evidence.certainty["distill"].double()
    inputs, heads = federation.data.distill_inputs, federation.heads
    for name, members in (("resnet8", (0, 1, 2)), ("shufflenet", (3, 4))):
        with torch.no_grad():
            features = federation.students[name].eval().features(inputs)
        weights = torch.stack([heads[i].weight for i in members])
        sigmas = torch.tensor([heads[i].release.sigma for i in members], dtype=torch.float64)
        shrunk = shrink_to_mean(weights, sigmas)
        assert not torch.allclose(shrunk, weights, rtol=1e-3)
        for i, guess in zip(members, shrunk, strict=True):
            logits = heads[i].public_map.rows(features) @ guess
            z = (logits - logits.mean()) / logits.std(correction=0)
            torch.testing.assert_close(scores[i], z.exp(), atol=1e-5, rtol=1e-4)
