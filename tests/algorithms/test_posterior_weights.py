"""FedAUX whose scores are p(client | x), made of class statistics."""

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAUX, Member, Released, TeacherMemory, Teachers
from fedaux_pl.algorithms.class_statistics import client_shares
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import pack_logits, soft_labels, unpack_logits
from fedaux_pl.scoring import (
    Centered,
    ClassStatistics,
    Collected,
    Privacy,
    PublicNumbers,
    SecureSums,
    StatisticsScoring,
)
from tests.federations import FewDigits, assert_same, create, fit, run, split, weights
from tests.paper import Parts

SECURE = Privacy(secure=SecureSums())


def posterior(epsilon=5.0, releases=1, **privacy):
    scoring = StatisticsScoring(dimensions=8, releases=releases)
    return FedAUX(scoring=scoring, privacy=Privacy(epsilon, **privacy))


def blobs(count=90, classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centers = 4 * torch.randn(classes, 12, generator=generator)
    return centers[labels] + torch.randn(count, 12, generator=generator), labels


def released(algorithm, owners, classes=3):
    """The releases of clients that own these records of the blobs."""
    rows, labels = blobs()
    sizes = [len(own) for own in owners]
    plan = algorithm.release.plan(PublicNumbers({"resnet8": sizes}, classes))
    step = plan["statistics"]
    public_map, one_hot = step.scoring.fit_map(rows, rows), torch.eye(classes)[labels]
    heads = [
        step.release(i, rows[own], rows[:0], public_map, i, one_hot[own])
        for i, own in enumerate(owners)
    ]
    collected = {"statistics": Collected(step, range(len(heads)), heads)}
    parts = {"distill": {"resnet8": rows}}
    names = ["resnet8"] * len(sizes)
    return Released(plan, collected, names, sizes, 0, classes, parts), labels


def by_class():
    """Client 0 has class 0 and half of class 1, client 1 the other half, client 2 has class 2."""
    rows = torch.arange(90)
    half = rows[rows % 3 == 1]
    return [torch.cat([rows[rows % 3 == 0], half[:15]]), half[15:], rows[rows % 3 == 2]]


def test_weights_are_the_probabilities_of_the_clients():
    algorithm = posterior(epsilon=None)
    sent, labels = released(algorithm, by_class())
    evidence = algorithm.release.evidence(sent)
    known = evidence.class_probabilities
    torch.testing.assert_close(known["distill"].sum(dim=1), torch.ones(90))
    assert (known["distill"].argmax(dim=1) == labels).float().mean() > 0.95
    scores = evidence.certainty["distill"]
    shares = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 1.0]])  # n_ic / n_c
    torch.testing.assert_close(client_shares(sent).float(), shares)
    expected = torch.stack([(known["distill"] * shares[i]).sum(dim=1) for i in range(3)])
    torch.testing.assert_close(scores, expected)


def test_the_statistics_speak_for_clients_that_do_not_teach():
    algorithm = posterior(epsilon=None)
    sent, _ = released(algorithm, by_class())
    evidence = algorithm.release.evidence(sent)
    labels = evidence.class_probabilities
    scores = evidence.certainty["distill"]
    logits = torch.randn(90, 3, generator=torch.Generator().manual_seed(1))
    teachers = Teachers(
        [Member("resnet8", {}, client=1)],
        lambda *_: logits,
        shape=(90, 3),
        certainty=scores,
        class_probabilities=labels["distill"],
    )
    found = algorithm.soft_labels(teachers)
    both = torch.stack([logits, labels["distill"].clamp(min=1e-6).log()])
    expected = soft_labels(both, torch.stack([scores[1], scores[0] + scores[2]]))
    torch.testing.assert_close(found, expected)


def test_remembered_clients_speak_for_themselves():
    """Client 0 is remembered, client 1 present; the statistics speak for client 2 alone."""
    algorithm = posterior(epsilon=None)
    sent, _ = released(algorithm, by_class())
    evidence = algorithm.release.evidence(sent)
    labels = evidence.class_probabilities
    scores = evidence.certainty["distill"]
    first, second = torch.randn(2, 90, 3, generator=torch.Generator().manual_seed(1))
    memory = TeacherMemory({})
    memory.remember(0, 1, "distill", first)
    teachers = Teachers(
        [Member("resnet8", {}, client=1)],
        lambda *_: second,
        shape=(90, 3),
        round=2,
        certainty=scores,
        class_probabilities=labels["distill"],
        memory=memory,
    )
    found = algorithm.soft_labels(teachers)
    remembered = unpack_logits(pack_logits(first))
    statistics = labels["distill"].clamp(min=1e-6).log()
    expected = soft_labels(torch.stack([remembered, second, statistics]), scores)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
@pytest.mark.parametrize("secure", [None, SecureSums()])
def test_a_resumed_run_ends_with_the_same_weights(secure, tmp_path):
    whole, first, resumed = (create(posterior(releases=2, secure=secure)) for _ in range(3))
    fit(tmp_path, whole, 2)
    saving = ModelCheckpoint(tmp_path / "saved", every_n_epochs=1, save_top_k=-1)
    fit(tmp_path, first, 1, callbacks=[saving], enable_checkpointing=True)
    [path] = (tmp_path / "saved").glob("*.ckpt")
    fit(tmp_path, resumed, 2, ckpt_path=path)
    counts = ["counts"] if secure else []
    assert list(resumed.state.releases) == ["statistics", *counts, "gradient/resnet8"]
    assert_same(weights(resumed), weights(whole))


def test_students_start_from_the_statistics(tmp_path):
    federation = create(posterior(epsilon=None))
    fit(tmp_path, federation, 1, split(3, auxiliary=FewDigits(auxiliary=400)))
    first = federation.history[0]
    assert first["statistics/accuracy"] > 0.3
    assert first["certainty/max"] <= 1 + 1e-6


def test_secure_sums_have_the_noise_of_one_client(tmp_path):
    """n = 3 clients: each adds noise of sigma / sqrt(2), and what they share is said."""
    local, secure = (run(tmp_path, posterior(secure=own), 0) for own in (None, SecureSums()))
    alone, part = local.heads[0].release, secure.heads[0].release
    share = secure.plan["statistics"].share
    assert part.sigma == pytest.approx(alone.sigma / 2**0.5 / share**0.5, rel=1e-3)
    assert [head.clients for head in secure.heads] == [(0, 1, 2)]
    assert secure.plan["counts"].share == pytest.approx(1 - share)
    text = " ".join(secure.privacy())
    assert "the sum over 3 clients of the sums of its feature rows" in text
    assert "together cost (epsilon 5, delta 1e-05)" in text


CENTERED = Parts(ClassStatistics(releases=2), Centered(), norm_bound="unit")


@pytest.mark.parametrize(
    "algorithm", [posterior(releases=2), FedAUX(scoring=CENTERED, privacy=Privacy(5.0))]
)
def test_architectures_are_mixed(tmp_path, algorithm):
    """Also with rows of different lengths."""
    clients = {"resnet8": 2, "shufflenet": 2}
    federation = create(algorithm, clients)
    fit(tmp_path, federation, 1, split(4))
    gradients = ["gradient/resnet8", "gradient/shufflenet"]
    assert list(federation.state.releases) == ["statistics", *gradients]
    torch.testing.assert_close(
        federation.evidence.certainty["distill"].sum(dim=0).cpu(),
        torch.ones(len(federation.data.distill_inputs)),
    )


@pytest.mark.parametrize(
    ("algorithm", "shufflenets", "problem"),
    [
        (
            FedAUX(privacy=SECURE),
            3,
            "Mean needs the vector of each",
        ),
        (
            posterior(secure=SecureSums()),
            2,
            "2 clients share .* needs at least 3",
        ),
        (posterior(secure=SecureSums(colluders=2)), 3, "3 clients share .* needs at least 4"),
    ],
)
def test_secure_sums_that_cannot_be(algorithm, shufflenets, problem, tmp_path):
    clients = {"resnet8": 4, "shufflenet": shufflenets}
    with pytest.raises(ConfigurationError, match=problem):
        fit(tmp_path, create(algorithm, clients), 0, split(4 + shufflenets))


def test_a_sum_without_noise_is_called_one(tmp_path):
    federation = create(posterior(secure=SecureSums(), epsilon=None), {"resnet8": 3})
    fit(tmp_path, federation, 0, split(3))
    assert "NOT private: the sum over 3 clients of" in " ".join(federation.privacy())


def test_a_class_that_no_client_holds_is_never_predicted():
    algorithm = posterior(epsilon=None)
    sent, labels = released(algorithm, by_class(), classes=4)
    evidence = algorithm.release.evidence(sent)
    known = evidence.class_probabilities["distill"]
    assert bool(known.isfinite().all())
    assert float(known[:, 3].max()) < 1e-3
    assert bool(evidence.certainty["distill"].isfinite().all())
    assert (known.argmax(dim=1) == labels).float().mean() > 0.95


@pytest.mark.parametrize("epsilon", [None, 1e-3])
@pytest.mark.parametrize(
    "owners", [[torch.arange(90)], [torch.tensor([0, 1])], [torch.arange(4)] * 5]
)
def test_few_records_and_much_noise_give_finite_labels(owners, epsilon):
    """One client, two records, fewer records than dimensions, noise that hides everything."""
    algorithm = posterior(epsilon=epsilon)
    sent, _ = released(algorithm, owners)
    evidence = algorithm.release.evidence(sent)
    assert bool(evidence.class_probabilities["distill"].isfinite().all())
    assert bool(evidence.certainty["distill"].isfinite().all())
