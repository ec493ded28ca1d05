"""Clients that are away teach by what they last said."""

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedDF, TeacherMemory
from fedaux_pl.algorithms.base import Ensemble, Update
from fedaux_pl.functional import soft_labels
from tests.federations import assert_same, create, fit, measured, run, weights

CPU = torch.device("cpu")


def logits(seed, count=5, classes=3):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def heard(memory, round_, **said):
    for name, seed in said.items():
        memory.hear(int(name[1:]), "distill", logits(seed))
    memory.commit(round_, [int(name[1:]) for name in said])


def test_the_last_words_are_kept_in_half_precision():
    memory = TeacherMemory()
    heard(memory, 1, c0=0, c2=2)
    heard(memory, 2, c2=9)
    found = list(memory.absent("distill", [], 4, CPU))
    assert [(client, age) for client, age, _ in found] == [(0, 3), (2, 2)]
    torch.testing.assert_close(found[0][2], logits(0).half().float())
    torch.testing.assert_close(found[1][2], logits(9).half().float())
    assert memory.bytes == 2 * 5 * 3 * 2


def test_who_is_there_is_not_remembered():
    memory = TeacherMemory()
    heard(memory, 1, c0=0, c1=1)
    assert [client for client, *_ in memory.absent("distill", [1, 5], 2, CPU)] == [0]
    assert not list(memory.absent("test", [], 2, CPU))


def test_a_round_that_fails_leaves_no_trace():
    memory = TeacherMemory()
    memory.hear(0, "distill", logits(0))
    memory.discard()
    memory.commit(1, [])
    assert not memory.kept


def test_a_client_whom_another_process_heard_is_forgotten_here():
    memory = TeacherMemory()
    heard(memory, 1, c0=0, c1=1)
    memory.commit(2, [0])
    assert set(memory.kept) == {1}


def test_the_longest_away_is_forgotten_first():
    memory = TeacherMemory(limit=2 * 5 * 3 * 2)
    for round_, client in enumerate((7, 3, 5)):
        heard(memory, round_, **{f"c{client}": client})
    assert set(memory.kept) == {3, 5}
    assert memory.forgotten == 1
    heard(memory, 3, c5=0)
    assert memory.forgotten == 0  # by this round


def test_it_comes_back_from_plain_values():
    memory, again = TeacherMemory(), TeacherMemory()
    heard(memory, 3, c4=4)
    again.restore(memory.plain())
    [(client, age, said)] = again.absent("distill", [], 5, CPU)
    assert (client, age) == (4, 2)
    assert torch.equal(said, logits(4).half().float())


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("scored", [True, False])
def test_soft_labels_with_absent_teachers(discount, scored):
    """A_s over present and absent teachers, the latter's scores times discount^age."""
    algorithm = FedDF(remember=True, discount=discount)
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(8)) + 0.1
    updates = [Update(client, "resnet8", {}, 1, 0.0) for client in (1, 3)]
    said = iter([logits(1), logits(3)])
    taken = {}
    result = algorithm.soft_labels(
        Ensemble(
            updates,
            {},
            lambda architecture, state: next(said),
            scores if scored else None,
            {},
            0,
            (5, 3),
            hear=taken.__setitem__,
            absent=lambda: [(0, 2, logits(0)), (2, 1, logits(2))],
        )
    )
    weights = torch.ones(4, 5) if not scored else scores.clone()
    weights[0] *= discount**2
    weights[2] *= discount
    expected = soft_labels(torch.stack([logits(n) for n in range(4)]), weights)
    torch.testing.assert_close(result, expected)
    assert set(taken) == {1, 3}


@pytest.mark.parametrize("algorithm", [FedAUX, FedDF])
def test_with_everybody_there_memory_changes_nothing(tmp_path, algorithm):
    plain = run(tmp_path, algorithm(), 2)
    remembering = run(tmp_path, algorithm(remember=True), 2)
    assert_same(weights(plain), weights(remembering))
    assert remembering.history[-1]["memory/clients"] == 3


def test_absent_clients_change_the_student_and_survive_a_resume(tmp_path):
    options = {"clients": {"resnet8": 4}, "participation": 0.5}
    whole = run(tmp_path, FedAUX(remember=True), 4, **options)
    without = run(tmp_path, FedAUX(), 4, **options)
    assert not torch.equal(
        weights(whole)["resnet8.head.weight"], weights(without)["resnet8.head.weight"]
    )
    part = create(FedAUX(remember=True), **options)
    trainer = fit(tmp_path, part, 2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    rest = create(FedAUX(remember=True), **options)
    fit(tmp_path, rest, 4, ckpt_path=tmp_path / "two.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)
    seen = [entry["memory/clients"] for entry in whole.history]
    assert seen == sorted(seen)
    assert seen[-1] > 2


def test_who_is_forgotten_is_counted_round_by_round(tmp_path):
    federation = create(FedDF(remember=True))
    federation.memory.limit = 1  # room for nobody but the last
    fit(tmp_path, federation, 2)
    assert [entry["memory/forgotten"] for entry in federation.history] == [2, 2]
    assert [entry["memory/clients"] for entry in federation.history] == [1, 1]
    roomy = run(tmp_path, FedDF(remember=True), 1)
    assert roomy.history[0]["memory/forgotten"] == 0


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.5])
def test_a_discount_that_is_none(discount):
    with pytest.raises(
        ValueError, match=f"discount must be above 0 and at most 1, but is {discount}"
    ):
        FedAUX(remember=True, discount=discount)


def test_a_discount_without_memory():
    with pytest.raises(ValueError, match="no effect without memory: set remember to true"):
        FedDF(discount=0.9)
