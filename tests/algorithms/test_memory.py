"""Absent clients teach with their last logits."""

import pytest
import torch

from fedaux_pl.algorithms import Ensemble, FedAUX, FedDF, Round, TeacherMemory, Update
from fedaux_pl.functional import soft_labels
from tests.federations import assert_same, create, fit, measured, run, weights
from tests.paper import paper_fedaux

CPU = torch.device("cpu")


def logits(seed, count=5, classes=3):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def teach(memory, round_, **seeds):
    """A round in which clients c0, c1 ... teach with logits of these seeds."""
    for name, seed in seeds.items():
        memory.remember(int(name[1:]), "distill", logits(seed))
    memory.commit(round_, [int(name[1:]) for name in seeds])


def test_the_last_logits_are_stored_in_half_precision():
    memory = TeacherMemory()
    teach(memory, 1, c0=0, c2=2)
    teach(memory, 2, c2=9)
    found = list(memory.absent_teachers("distill", [], 4, CPU))
    assert [(client, age) for client, age, _ in found] == [(0, 3), (2, 2)]
    torch.testing.assert_close(found[0][2], logits(0).half().float())
    torch.testing.assert_close(found[1][2], logits(9).half().float())
    assert memory.bytes == 2 * 5 * 3 * 2


def test_only_absent_clients_are_returned():
    memory = TeacherMemory()
    teach(memory, 1, c0=0, c1=1)
    assert [client for client, *_ in memory.absent_teachers("distill", [1, 5], 2, CPU)] == [0]
    assert not list(memory.absent_teachers("test", [], 2, CPU))


def test_a_failed_round_leaves_the_memory_unchanged():
    memory = TeacherMemory()
    memory.remember(0, "distill", logits(0))
    memory.discard()
    memory.commit(1, [])
    assert not memory.stored


def test_a_client_of_another_process_is_forgotten_here():
    memory = TeacherMemory()
    teach(memory, 1, c0=0, c1=1)
    memory.commit(2, [0])
    assert set(memory.stored) == {1}


def test_the_longest_absent_client_is_forgotten_first():
    memory = TeacherMemory(limit=2 * 5 * 3 * 2)
    for round_, client in enumerate((7, 3, 5)):
        teach(memory, round_, **{f"c{client}": client})
    assert set(memory.stored) == {3, 5}
    assert memory.forgotten == 1
    teach(memory, 3, c5=0)
    assert memory.forgotten == 0  # by this round


def test_a_memory_is_restored_from_its_state_dict():
    memory, again = TeacherMemory(), TeacherMemory()
    teach(memory, 3, c4=4)
    again.load_state_dict(memory.state_dict())
    [(client, age, remembered)] = again.absent_teachers("distill", [], 5, CPU)
    assert (client, age) == (4, 2)
    assert torch.equal(remembered, logits(4).half().float())


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("scored", [True, False])
def test_soft_labels_with_absent_teachers(discount, scored):
    """Soft labels of present and absent teachers, the latter's weights times discount^age."""
    algorithm = (FedAUX if scored else FedDF)(remember=True, discount=discount)
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(8)) + 0.1
    memory = TeacherMemory()
    teach(memory, 1, c0=0)
    teach(memory, 2, c2=2)
    updates = [Update(client, "resnet8", 1, 0.0, state={}) for client in (1, 3)]
    predictions = iter([logits(1), logits(3)])
    result = algorithm.soft_labels(
        Ensemble(
            Round(3, updates, clients=[1, 3]),
            lambda architecture, state: next(predictions),
            (5, 3),
            scores=scores if scored else None,
            memory=memory,
        )
    )
    weights = torch.ones(4, 5) if not scored else scores.clone()
    weights[0] *= discount**2
    weights[2] *= discount
    teachers = [logits(0).half().float(), logits(1), logits(2).half().float(), logits(3)]
    torch.testing.assert_close(result, soft_labels(torch.stack(teachers), weights))
    memory.commit(3, [1, 3])
    assert set(memory.stored) == {0, 1, 2, 3}


@pytest.mark.parametrize("algorithm", [paper_fedaux, FedDF])
def test_without_absent_clients_memory_changes_nothing(tmp_path, algorithm):
    plain = run(tmp_path, algorithm(), 2)
    remembering = run(tmp_path, algorithm(remember=True), 2)
    assert_same(weights(plain), weights(remembering))
    assert remembering.history[-1]["memory/clients"] == 3


def test_absent_clients_change_the_student_also_after_a_resume(tmp_path):
    options = {"clients": {"resnet8": 4}, "participation": 0.5}
    whole = run(tmp_path, paper_fedaux(remember=True), 4, **options)
    without = run(tmp_path, paper_fedaux(), 4, **options)
    assert not torch.equal(
        weights(whole)["resnet8.head.weight"], weights(without)["resnet8.head.weight"]
    )
    part = create(paper_fedaux(remember=True), **options)
    trainer = fit(tmp_path, part, 2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    rest = create(paper_fedaux(remember=True), **options)
    fit(tmp_path, rest, 4, ckpt_path=tmp_path / "two.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)
    seen = [entry["memory/clients"] for entry in whole.history]
    assert seen == sorted(seen)
    assert seen[-1] > 2


def test_forgotten_clients_are_counted_in_each_round(tmp_path):
    federation = create(FedDF(remember=True))
    federation.memory.limit = 1  # only the last client fits
    fit(tmp_path, federation, 2)
    assert [entry["memory/forgotten"] for entry in federation.history] == [2, 2]
    assert [entry["memory/clients"] for entry in federation.history] == [1, 1]
    roomy = run(tmp_path, FedDF(remember=True), 1)
    assert roomy.history[0]["memory/forgotten"] == 0


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.5])
def test_an_invalid_discount(discount):
    with pytest.raises(
        ValueError, match=f"discount must be above 0 and at most 1, but is {discount}"
    ):
        FedAUX(remember=True, discount=discount)


def test_a_discount_without_memory():
    with pytest.raises(ValueError, match="no effect without memory: set remember to true"):
        FedDF(discount=0.9)
