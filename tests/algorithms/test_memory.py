"""Absent clients teach with their last logits."""

from collections import Counter

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedDF, Member, TeacherMemory, Teachers, memory
from fedaux_pl.functional import pack_logits, soft_labels, unpack_logits
from fedaux_pl.processes import Processes
from tests.federations import assert_same, create, fit, measured, run, weights
from tests.paper import paper_fedaux


def logits(seed, count=5, classes=3):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def kept(seed):
    """The logits of a seed as they are remembered."""
    return unpack_logits(pack_logits(logits(seed)))


def teach(teachers, round_, *clients):
    """A round in which clients teach with logits of their numbers; returns how many are dropped."""
    for client in clients:
        remember(teachers, client, round_, "distill", logits(client))
    return TeacherMemory(teachers).forget(round_, clients)


def remember(teachers, client, round_, part, predicted):
    TeacherMemory(teachers).remember(client, round_, part, predicted)


def absent(teachers, present=(), part="distill"):
    """The absent clients that teach, with their logits."""
    members = [Member("resnet8", {}, client) for client in present]
    found = list(
        Teachers(
            members,
            lambda *_: logits(0),
            shape=(5, 3),
            part=part,
            memory=TeacherMemory(dict(teachers)),
        )
    )
    assert [teacher.client for teacher in found[: len(present)]] == list(present)
    return {teacher.client: teacher.logits for teacher in found[len(present) :]}


def test_the_last_logits_are_stored_in_bytes():
    teachers = {}
    teach(teachers, 1, 2, 0)
    remember(teachers, 2, 2, "distill", logits(9))
    found = absent(teachers)
    assert list(found) == [0, 2]
    assert torch.equal(found[0], kept(0))
    assert torch.equal(found[2], kept(9))
    assert sum(teacher.bytes for teacher in teachers.values()) == 2 * 5 * (3 + 1)


def test_the_logits_of_a_round_on_all_data_are_stored():
    teachers = {}
    remember(teachers, 0, 1, "distill", logits(0))
    remember(teachers, 0, 1, "evaluation", logits(1))
    assert torch.equal(absent(teachers, part="evaluation")[0], kept(1))
    assert torch.equal(absent(teachers)[0], kept(0))
    remember(teachers, 0, 2, "distill", logits(2))
    assert not absent(teachers, part="evaluation")  # of a model that was replaced


def test_only_absent_clients_are_returned():
    teachers = {}
    teach(teachers, 1, 0, 1)
    assert list(absent(teachers, present=[1, 5])) == [0]


def test_a_client_of_another_process_is_forgotten_here():
    teachers = {}
    teach(teachers, 1, 0, 1)
    assert TeacherMemory(teachers).forget(2, [0]) == 0
    assert set(teachers) == {1}


def test_the_longest_absent_client_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(memory, "MOST_BYTES", 2 * 5 * 4)
    teachers = {}
    dropped = [teach(teachers, round_, client) for round_, client in enumerate((7, 3, 5))]
    assert dropped == [0, 0, 1]
    assert set(teachers) == {3, 5}
    assert teach(teachers, 3, 5) == 0


def test_large_logits_are_moved_to_the_host(monkeypatch):
    """Those of a GPU; here, tensors of the device "meta" would have no values to move."""
    moved = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor) or tensor)
    remember({}, 0, 1, "distill", logits(0))
    assert not moved
    monkeypatch.setattr(memory, "DEVICE_BYTES", 1000 * 5 * 4 - 1)
    remember({}, 0, 1, "distill", logits(0))
    assert len(moved) == 1


class OneOfTwo(Processes):
    """The first of two processes; the other stores the logits of clients 8 and 9."""

    def merge(self, own):
        return own | {8: (1, 0, 8, 20), 9: (2, 0, 9, 20)}

    def gather(self, own):
        return [own, [9, 8]]


def test_the_limit_is_that_of_all_processes(monkeypatch):
    """Which clients are forgotten does not depend on the number of processes."""
    monkeypatch.setattr(memory, "MOST_BYTES", 70)
    teachers = {}
    for round_, client in ((1, 7), (2, 4), (3, 5)):  # 20 bytes each
        teach(teachers, round_, client)
    shared = TeacherMemory(teachers, OneOfTwo(world_size=2))
    assert shared.absent("distill", [4]) == [5, 7, 8, 9]
    assert shared.forget(4, []) == 1  # 7 is forgotten here, 8 there
    assert set(teachers) == {4, 5}


@pytest.mark.parametrize("scored", [True, False])
def test_soft_labels_with_absent_teachers(scored):
    """Absent teachers count as present ones do."""
    algorithm = (FedAUX if scored else FedDF)(remember=True)
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(8)) + 0.1
    teachers = {}
    teach(teachers, 1, 0)
    teach(teachers, 2, 2)
    members = [Member("resnet8", {}, client) for client in (1, 3)]
    predictions = iter([logits(1), logits(3)])
    result = algorithm.soft_labels(
        Teachers(
            members,
            lambda architecture, state: next(predictions),
            shape=(5, 3),
            round=3,
            certainty=scores if scored else None,
            memory=TeacherMemory(teachers),
        )
    )
    everyone = torch.stack([kept(0), logits(1), kept(2), logits(3)])
    torch.testing.assert_close(result, soft_labels(everyone, scores if scored else None))
    assert set(teachers) == {0, 1, 2, 3}


def test_without_an_answer_the_memory_teaches_alone():
    teachers = {}
    teach(teachers, 1, 0)
    nobody = Teachers(
        [], None, shape=(5, 3), certainty=torch.ones(4, 5), memory=TeacherMemory(teachers)
    )
    torch.testing.assert_close(FedAUX().soft_labels(nobody), kept(0).softmax(dim=1))


@pytest.mark.parametrize("scale", [1.0, 70_000.0, 1e6])
def test_remembered_logits_of_any_size_teach_as_others_do(scale):
    own = scale * torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.3, -0.3, 0.0]])
    own += torch.tensor([0.25, 0.0, 1.5])  # so that rows of equal order of magnitude differ
    own[2] = torch.tensor([2.0, -1.0, 0.5])  # an ordinary row
    other = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.5, -0.5]])
    teachers = {}
    remember(teachers, 1, 1, "distill", own)
    members = [Member("resnet8", {}, client=0)]
    result = FedDF(remember=True).soft_labels(
        Teachers(members, lambda *_: other, shape=(3, 3), memory=TeacherMemory(teachers))
    )
    torch.testing.assert_close(result, soft_labels(torch.stack([other, own])), rtol=0, atol=1e-3)


def test_close_logits_far_from_0_keep_their_difference():
    """Only the distance to the largest logit is stored."""
    teachers = {}
    remember(teachers, 0, 1, "distill", torch.tensor([[1e5, 1e5 + 1, 1e5 - 2]]).expand(5, 3))
    assert absent(teachers)[0][0].tolist() == pytest.approx([-1, 0, -3], abs=0.01)


def test_the_longest_absent_are_forgotten_beyond_the_most_clients(monkeypatch):
    monkeypatch.setattr(memory, "MOST_CLIENTS", 2)
    teachers = {}
    dropped = [teach(teachers, round_, client) for round_, client in ((1, 5), (2, 1), (3, 0))]
    assert dropped == [0, 0, 1]
    assert set(teachers) == {1, 0}


def test_a_round_of_too_many_clients_forgets_each_of_them_as_often(monkeypatch):
    monkeypatch.setattr(memory, "MOST_CLIENTS", 2)
    teachers, counts = {}, Counter()
    for round_ in range(1, 61):
        assert teach(teachers, round_, 0, 1, 2, 3) == 2
        counts.update(list(teachers))
    assert counts.total() == 120
    assert all(20 <= counts[client] <= 40 for client in range(4))


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


def test_forgotten_clients_are_counted_in_each_round(tmp_path, monkeypatch):
    roomy = run(tmp_path, FedDF(remember=True), 1)
    assert roomy.history[0]["memory/forgotten"] == 0
    monkeypatch.setattr(memory, "MOST_BYTES", 1)
    federation = run(tmp_path, FedDF(remember=True), 2)
    assert [entry["memory/forgotten"] for entry in federation.history] == [2, 2]
    assert [entry["memory/clients"] for entry in federation.history] == [1, 1]
