"""Absent clients teach with their last logits."""

from collections import Counter

import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl.algorithms import Ensemble, FedAUX, FedDF, Round, TeacherMemory, Update
from fedaux_pl.functional import pack_logits, soft_labels, unpack_logits
from fedaux_pl.processes import Processes
from tests.federations import assert_same, create, fit, measured, run, weights
from tests.paper import paper_fedaux


def logits(seed, count=5, classes=3):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def teach(memory, round_, **seeds):
    """A round in which clients c0, c1 ... teach with logits of these seeds."""
    for name, seed in seeds.items():
        memory.remember(int(name[1:]), "distill", logits(seed))
    memory.commit(round_, [int(name[1:]) for name in seeds])


def absent(memory, round_, present=(), part="distill"):
    """What an ensemble of this round finds in the memory."""
    empty = Round(round_, [], clients=list(present))
    ensemble = Ensemble(empty, lambda *_: torch.empty(0), (5, 3), part=part, memory=memory)
    return list(ensemble.absent_teachers())


def kept(seed):
    """The logits of a seed as the memory keeps them."""
    return unpack_logits(pack_logits(logits(seed)))


def test_the_last_logits_are_stored_in_bytes():
    memory = TeacherMemory()
    teach(memory, 1, c2=2, c0=0)
    teach(memory, 2, c2=9)
    found = absent(memory, 4)
    assert [client for client, _ in found] == [0, 2]
    assert torch.equal(found[0][1], kept(0))
    assert torch.equal(found[1][1], kept(9))
    assert memory.bytes == 2 * 5 * (3 + 1)


def test_only_absent_clients_are_returned():
    memory = TeacherMemory()
    teach(memory, 1, c0=0, c1=1)
    assert [client for client, _ in absent(memory, 2, present=[1, 5])] == [0]
    assert not absent(memory, 2, part="test")


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
    memory = TeacherMemory(limit=2 * 5 * 4)
    for round_, client in enumerate((7, 3, 5)):
        teach(memory, round_, **{f"c{client}": client})
    assert set(memory.stored) == {3, 5}
    assert memory.forgotten == 1
    teach(memory, 3, c5=0)
    assert memory.forgotten == 0  # by this round


class OneOfTwo(Processes):
    """The first of two processes; the other stores the logits of clients 8 and 9."""

    def merge(self, own):
        return own | {8: (1, 0, 8, 20), 9: (2, 0, 9, 20)}


def test_the_limit_is_that_of_all_processes():
    """Which clients are forgotten does not depend on the number of processes."""
    memory = TeacherMemory(limit=70)
    for round_, client in ((1, 7), (2, 4), (3, 5)):  # 20 bytes each
        memory.remember(client, "distill", logits(client))
        memory.commit(round_, [client])
    processes = OneOfTwo(world_size=2)
    memory.commit(4, [], processes)
    assert set(memory.stored) == {4, 5}  # 7 is forgotten here, 8 there: 60 bytes remain
    assert memory.forgotten == 1  # here


def test_a_memory_is_restored_from_its_state_dict():
    memory, again = TeacherMemory(), TeacherMemory()
    teach(memory, 3, c4=4)
    again.load_state_dict(memory.state_dict())
    [(client, remembered)] = absent(again, 5)
    assert client == 4
    assert torch.equal(remembered, kept(4))


@pytest.mark.parametrize("scored", [True, False])
def test_soft_labels_with_absent_teachers(scored):
    """Absent teachers count as present ones do."""
    algorithm = (FedAUX if scored else FedDF)(remember=True)
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
    weights = scores if scored else torch.ones(4, 5)
    teachers = [kept(0), logits(1), kept(2), logits(3)]
    torch.testing.assert_close(result, soft_labels(torch.stack(teachers), weights))
    memory.commit(3, [1, 3])
    assert set(memory.stored) == {0, 1, 2, 3}


SCORES = torch.tensor(  # of clients 0 to 3 on 5 samples
    [
        [0.90, 0.01, 0.40, 0.0, 0.25],
        [0.01, 0.90, 0.01, 0.02, 0.25],
        [0.05, 0.05, 0.58, 0.9, 0.25],
        [0.04, 0.04, 0.01, 0.0, 0.25],
    ]
)


def test_without_an_answer_the_memory_teaches_alone():
    memory = TeacherMemory()
    teach(memory, 1, c0=0)
    nobody = Ensemble(Round(2, [], []), None, (5, 3), torch.ones(4, 5), memory=memory)
    torch.testing.assert_close(FedAUX().soft_labels(nobody), kept(0).softmax(dim=1))


@pytest.mark.parametrize("scale", [1.0, 70_000.0, 1e6])
def test_remembered_logits_of_any_size_teach_as_others_do(scale):
    own = scale * torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.3, -0.3, 0.0]])
    own += torch.tensor([0.25, 0.0, 1.5])  # so that rows of equal order of magnitude differ
    own[2] = torch.tensor([2.0, -1.0, 0.5])  # an ordinary row
    other = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.5, -0.5]])
    memory = TeacherMemory()
    memory.remember(1, "distill", own)
    memory.commit(1, [1])
    update = Update(0, "resnet8", 1, 0.0, state={})
    ensemble = Ensemble(Round(2, [update], clients=[0]), lambda *_: other, (3, 3), memory=memory)
    result = FedDF(remember=True).soft_labels(ensemble)
    torch.testing.assert_close(result, soft_labels(torch.stack([other, own])), rtol=0, atol=1e-3)


def test_close_logits_far_from_0_keep_their_difference():
    """Only the distance to the largest logit is stored."""
    memory = TeacherMemory()
    memory.remember(0, "distill", torch.tensor([[1e5, 1e5 + 1, 1e5 - 2]]).expand(5, 3))
    memory.commit(1, [0])
    [(_, remembered)] = absent(memory, 2)
    assert remembered[0].tolist() == pytest.approx([-1, 0, -3], abs=0.01)


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
    class OneClientFits(pl.Callback):
        def on_train_start(self, trainer, federation):
            federation.carried.memory.limit = 1

    federation = create(FedDF(remember=True))
    fit(tmp_path, federation, 2, callbacks=[OneClientFits()])
    assert [entry["memory/forgotten"] for entry in federation.history] == [2, 2]
    assert [entry["memory/clients"] for entry in federation.history] == [1, 1]
    roomy = run(tmp_path, FedDF(remember=True), 1)
    assert roomy.history[0]["memory/forgotten"] == 0


def test_the_longest_absent_are_forgotten_beyond_the_most_clients():
    memory = TeacherMemory(most_clients=2)
    teach(memory, 1, c5=5)
    teach(memory, 2, c1=1)
    teach(memory, 3, c0=0)
    assert set(memory.stored) == {1, 0}
    assert memory.forgotten == 1


def test_a_round_of_too_many_clients_forgets_each_of_them_as_often():
    memory, kept = TeacherMemory(most_clients=2), Counter()
    for round_ in range(1, 61):
        teach(memory, round_, c0=0, c1=1, c2=2, c3=3)
        kept.update(list(memory.stored))
        assert memory.forgotten == 2
    assert kept.total() == 120
    assert all(20 <= kept[client] <= 40 for client in range(4))
