"""Teachers are asked in the order in which students learn, and ahead of them."""

import gc
import weakref

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedBE, FedDF
from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Distillation, StageRunner, server
from fedaux_pl.engine.lesson import CHUNK, Lesson, chunk_of
from fedaux_pl.engine.server import Server
from tests.federations import FewDigits, assert_same, create, fit, split, weights

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ANSWERS = torch.arange(26 * 3, dtype=torch.float32).reshape(26, 3) + 1


class Teachers:
    """Say what is written, and remember what they were asked."""

    def __init__(self, count=26, batch_size=4, by_row=True, **options):
        self.asked, self.examined = [], 0
        self.answers = ANSWERS[:count]
        self.batches = TensorBatches(
            torch.arange(count),
            torch.zeros(count, 3),
            batch_size=batch_size,
            shuffle=True,
            seed=5,
            smallest=2,
            **options,
        )
        self.lesson = Lesson(self.batches, self.label, self.examine, by_row, 10)

    def label(self, rows):
        self.asked.append(rows)
        return self.answers if rows is None else self.answers[rows]

    def examine(self):
        self.examined += 1
        return {"asked": torch.tensor(len(self.asked))}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(server, "chunk_of", lambda models: 10)  # two batches of four, and no third


def test_models_that_want_many_rows_get_larger_chunks():
    few, many = torch.nn.Module(), torch.nn.Module()
    few.rows_at_once, many.rows_at_once = 2048, 1 << 17
    assert chunk_of([few, torch.nn.Module()]) == CHUNK
    assert chunk_of([few, many]) == 1 << 14


def test_a_chunk_is_there_before_its_batches_and_one_is_ahead():
    teachers = Teachers()
    assert not teachers.asked
    counts = []
    with teachers.lesson.attended():
        for inputs, targets in teachers.batches:
            counts.append(len(teachers.asked))
            assert torch.equal(targets, ANSWERS[inputs])
    assert counts == [2, 2, 3, 3, 4, 4, 4]


def test_the_order_is_that_of_the_first_epoch():
    teachers = Teachers()
    plan = teachers.batches.positions(0)
    teachers.lesson.finish()
    found = [sorted(rows.tolist()) for rows in teachers.asked]
    assert found == [sorted(torch.cat(plan[n : n + 2]).tolist()) for n in range(0, 7, 2)]
    assert found == [rows.tolist() for rows in teachers.asked]  # within a chunk it does not matter


def test_batches_larger_than_a_chunk_are_chunks():
    teachers = Teachers(batch_size=12)
    teachers.lesson.finish()
    assert [len(rows) for rows in teachers.asked] == [12, 12, 2]


def test_what_the_first_epoch_leaves_out_is_there_for_the_second():
    """25 samples in batches of 4: the last one of every epoch is left out."""
    teachers = Teachers(25)
    left = set(range(25)) - set(torch.cat(teachers.batches.positions(0)).tolist())
    assert len(left) == 1
    with teachers.lesson.attended():
        for _ in range(3):
            for inputs, targets in teachers.batches:
                assert torch.equal(targets, ANSWERS[inputs])
    assert sorted(torch.cat(teachers.asked).tolist()) == list(range(25))


def test_teachers_are_asked_and_examined_once():
    teachers = Teachers()
    for _ in range(2):  # students
        with teachers.lesson.attended():
            for _ in range(2):  # epochs
                list(teachers.batches)
    assert torch.equal(torch.cat(teachers.asked).sort().values, torch.arange(26))
    assert teachers.lesson.finish() == {"asked": 4}  # examined after the last chunk
    assert teachers.examined == 1


def test_everything_at_once():
    teachers = Teachers(by_row=False)
    teachers.lesson.finish()
    assert teachers.asked == [None]
    assert torch.equal(teachers.lesson.targets, ANSWERS)
    with teachers.lesson.attended():
        list(teachers.batches)
    assert teachers.asked == [None]


def test_a_student_that_fails_leaves_nothing_behind():
    teachers = Teachers()

    def student():
        with teachers.lesson.attended():
            next(iter(teachers.batches))
            raise RuntimeError("power failure")

    with pytest.raises(RuntimeError, match="power"):
        student()
    assert teachers.batches.before is None
    assert len(teachers.asked) == 2


def test_what_teachers_hold_is_freed_with_the_lesson():
    """At once: models of a round must not wait for the garbage collector."""
    teachers = Teachers()
    gc.disable()
    try:
        gone = weakref.ref(teachers.lesson)
        with teachers.lesson.attended():
            list(teachers.batches)
        del teachers.lesson
        assert gone() is None
    finally:
        gc.enable()


# --- in a federation ---------------------------------------------------------------------------

MANY = {"auxiliary": FewDigits(auxiliary=81)}  # 65 rows: 4 batches of 16, and one is left out
STEADY = {"distillation": Distillation(epochs=2, batch_size=16, optimizer="sgd", lr=0.05)}


def spy(monkeypatch, cls, name):
    """The results of a method."""
    results, original = [], getattr(cls, name)

    def call(*args, **kwargs):
        results.append(original(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr(cls, name, call)
    return results


def both(root, monkeypatch, algorithm, rounds, data=None, trainer=None, **options):
    """Each round's labels and states, everything first and by rows, from the same teachers."""
    original, found = Server.distill, []
    lessons = spy(monkeypatch, Server, "teach")

    def twice(server, teaching):
        results = []
        for by_row in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(type(algorithm), "by_row", by_row and type(algorithm).by_row)
                states, measured = original(server, teaching)
            results.append((lessons.pop().targets.clone(), states, measured))
        found.append((teaching.averages, *results))
        return states, measured

    federation = create(algorithm, **({"clients": {"resnet8": 4}} | STEADY | options))
    with monkeypatch.context() as patch:
        patch.setattr(Server, "distill", twice)
        fit(root, federation, rounds, data or split(4, **MANY), **(trainer or {}))
    return found


def distance(one, other, start):
    """How far two trainings are apart, relative to how far they went."""

    def size(a, b):
        return sum(float((a[k].double() - b[k].double()).square().sum()) for k in a)

    return (size(one, other) / size(one, start)) ** 0.5


@pytest.mark.parametrize(
    "algorithm", [FedDF(), FedAUX(), FedAUX(remember=True, discount=0.5)], ids=lambda a: a.name
)
def test_by_rows_is_everything_at_once(tmp_path, monkeypatch, algorithm):
    """Up to rounding: convolutions of 16 images may add up otherwise than those of 65."""
    asked = spy(monkeypatch, type(algorithm), "soft_labels")
    found = both(tmp_path, monkeypatch, algorithm, 3, participation=0.5)
    assert [len(labels) for labels in asked[:7]] == [65, 40, 16, 16, 16, 17, 40]
    for start, (first, states, measured), (rows, others, again) in found:
        torch.testing.assert_close(rows, first, rtol=1e-5, atol=1e-6)
        assert distance(states["resnet8"], others["resnet8"], start["resnet8"]) < 1e-4
        assert measured == pytest.approx(again, rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(FedBE(samples=1), {}), (FedDF(), {"batchnorm": "batch"}), (FedDF(), {"train": "head"})],
    ids=["FedBE", "batch", "head"],
)
def test_where_rows_depend_on_others_or_cost_nothing_all_are_first(
    tmp_path, monkeypatch, algorithm, options
):
    asked = spy(monkeypatch, type(algorithm), "soft_labels")
    fit(tmp_path, create(algorithm, **options), 1, split(3, **MANY))
    assert [len(labels) for labels in asked] == [65, 40]


def test_epochs_and_architectures_share_one_lesson(tmp_path, monkeypatch):
    """Three epochs of two students: each of four clients is asked for each row once."""
    rows = []
    original = Server.predict

    def predict(server, architecture, state, part, inputs=None):
        logits = original(server, architecture, state, part, inputs)
        rows.append((part, len(logits)))
        return logits

    monkeypatch.setattr(Server, "predict", predict)
    clients = {"resnet8": 2, "shufflenet": 2}
    federation = create(
        FedDF(), clients, distillation=Distillation(epochs=3, batch_size=16, lr=1e-3)
    )
    fit(tmp_path, federation, 1, split(4, **MANY))
    assert sum(count for part, count in rows if part == "distill") == 4 * 65
    assert sum(count for part, count in rows if part == "test") == (4 + 2) * 40  # and the averages
    assert {count for part, count in rows if part == "distill"} == {16, 17}
    for name in clients:
        assert federation.history[0][f"distillation_loss/{name}"] > 0


def test_no_epochs_at_all(tmp_path):
    """Nobody learns, and what teachers say is measured and remembered all the same."""
    federation = create(FedDF(remember=True), distillation=Distillation(epochs=0, batch_size=16))
    fit(tmp_path, federation, 1)
    assert federation.history[0]["memory/clients"] == 3
    assert 0 <= federation.history[0]["teachers/agreement"] <= 1


@pytest.mark.parametrize("culprit", ["teacher", "student"])
def test_a_lesson_that_ends_halfway_is_not_remembered(tmp_path, monkeypatch, culprit):
    """When the second round has asked for some chunks, and the student has begun."""
    options = {"clients": {"resnet8": 4}, "participation": 0.5, **STEADY}
    one, federation = (create(FedDF(remember=True), **options) for _ in range(2))
    fit(tmp_path, one, 1, split(4, **MANY))
    taken = []
    owner, name = (Server, "predict") if culprit == "teacher" else (StageRunner, "_step")
    original = getattr(owner, name)

    def fail(self, *args):
        own = args[0] in federation.server.distillers.values() or "distill" in args
        if own and len(federation.history) == 1:
            taken.append(args)
            if len(taken) == (2 * 2 + 1 if culprit == "teacher" else 2):  # two teachers a chunk
                raise RuntimeError("power failure")
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="power failure"):
            fit(tmp_path, federation, 3, split(4, **MANY))
    assert_same(weights(federation), weights(one))
    assert {c: kept.round for c, kept in federation.memory.kept.items()} == {
        c: kept.round for c, kept in one.memory.kept.items()
    }
    if culprit == "teacher":  # of the third chunk, before which the student took a step
        assert federation.server.distillers["resnet8"].model.bn1.num_batches_tracked > 0


# --- on a GPU ----------------------------------------------------------------------------------


def on_gpu(precision):
    return {"accelerator": "gpu", "devices": 1, "precision": precision}


@needs_gpu
@pytest.mark.parametrize(
    ("precision", "close"), [("32-true", 1e-3), ("bf16-mixed", 3e-2), ("16-mixed", 3e-2)]
)
def test_side_by_side_is_one_after_the_other(tmp_path, monkeypatch, precision, close):
    """A missing wait would have students learn from zeros, or from memory of somebody else."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(server, "chunk_of", lambda models: 64)
    found = both(
        tmp_path,
        monkeypatch,
        FedAUX(remember=True, discount=0.5),
        3,
        split(4, auxiliary=FewDigits(auxiliary=598)),
        on_gpu(precision),
        participation=0.5,
        model_options={},
    )
    for start, (first, states, _), (rows, others, _) in found:
        torch.testing.assert_close(rows, first, rtol=0, atol=close)
        assert distance(states["resnet8"], others["resnet8"], start["resnet8"]) < 0.2


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nobody_waits_while_teachers_are_asked(tmp_path, monkeypatch):
    """The host has to launch the student's steps meanwhile."""
    original, asked = Lesson._ask, []

    def ask(self):
        asked.append(self)
        warm = len(asked) > 8  # kernels were compiled and chosen in the first rounds
        torch.cuda.set_sync_debug_mode("error" if warm else "default")
        try:
            original(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Lesson, "_ask", ask)
    federation = create(
        FedAUX(remember=True), clients={"resnet8": 4}, participation=0.5, model_options={}, **STEADY
    )
    fit(tmp_path, federation, 3, split(4, **MANY), **on_gpu("bf16-mixed"))
    assert len(asked) == 3 * 4


@needs_gpu
def test_a_student_that_fails_is_waited_for():
    cuda = {"device": "cuda"}
    batches = TensorBatches(torch.zeros(4, **cuda), torch.zeros(4, 2, **cuda), batch_size=2)
    one = Lesson(batches, lambda rows: torch.ones(len(rows), 2, **cuda), dict, True)
    written = torch.zeros(1, **cuda)

    def student():
        with one.attended():
            assert torch.cuda.current_stream() != torch.cuda.default_stream()
            assert torch.cuda.current_stream().priority < 0
            torch.cuda._sleep(200_000_000)
            written.add_(1)
            raise RuntimeError("power failure")

    with pytest.raises(RuntimeError, match="power"):
        student()
    assert float(written) == 1
