"""Which steps with packed texts are captured, and that they take the samples of plain steps.

On the CPU no pass is packed, so the results are those of plain training bit for bit. That packed
passes compute what padded ones do is tested in ``packing_checks``, and with CUDA graphs in
``test_bert``.
"""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from fedaux_pl.accelerate import CudaRunner
from fedaux_pl.accelerate.bert import fast_encoder
from fedaux_pl.accelerate.bert.fast_encoder import find_packable
from fedaux_pl.accelerate.bert.packing import MAX_KINDS, choose_rows, packed_rows
from fedaux_pl.accelerate.recording import runner as runner_module
from fedaux_pl.accelerate.versions import speed_up
from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job
from fedaux_pl.modules import ClientModule, DistillationModule
from tests.accelerate.recorders import FakeRecorder
from tests.accelerate.test_replicas import assert_same_results
from tests.engine.test_stage import within
from tests.texts import CONFIG, ids

OPTIONS = {"config": CONFIG | {"num_hidden_layers": 1}, "mask_id": 4}
LENGTH, BATCH = 40, 8  # rows are multiples of 64, at most 319
SIZES = (43, 24, 17)


def texts():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 26, (60,), generator=generator)
    lengths[:12] = 40
    return ids(*lengths.tolist(), width=LENGTH)


def text_jobs(start, targets, sizes=SIZES):
    made = []
    for number, size in enumerate(sizes):
        subset = torch.arange(number, number + size)
        options = {"seed": number, "subset": subset, "smallest": 2}
        batches = TensorBatches(texts(), targets, batch_size=BATCH, shuffle=True, **options)
        made.append(Job(batches, 2, number, start))
    return made


def tokens(batch):
    return int((batch[0] != 0).sum())


@pytest.fixture
def recorded(monkeypatch):
    """The (tokens, texts, rows) of all steps, for a module whose steps could be packed."""

    def pretend(module, x):
        encoders = [one for one in module.modules() if hasattr(one, "lengths")]
        return encoders[0] if encoders else None

    monkeypatch.setattr(runner_module, "find_packable", pretend)
    steps, step = [], CudaRunner.step

    def record(runner, module, optimizer, batch, index):
        steps.append((tokens(batch), len(batch[0]), packed_rows(batch[0])))
        return step(runner, module, optimizer, batch, index)

    monkeypatch.setattr(CudaRunner, "step", record)
    return steps


def labels():
    return torch.arange(60) % 3


@pytest.mark.parametrize(
    ("create", "targets", "sizes", "limit"),
    [
        (ClientModule, labels, SIZES, 3),
        (DistillationModule, lambda: F.one_hot(labels(), 3).float(), (43,), 1),
    ],
)
def test_steps_have_rows_for_their_tokens(create, targets, sizes, limit, recorded):
    def work(runner):
        torch.manual_seed(0)
        module = create("encoder", 3, model_options=OPTIONS)
        return runner.run_all(module, text_jobs(module.copy_model_state(), targets(), sizes))

    recorder = FakeRecorder(limit, uses_rng=True)
    found = within(lambda runner: work(CudaRunner(runner.trainer, recorder)))
    assert_same_results(within(work), found)
    assert recorder.replayed > 0
    packed = [(count, rows) for count, size, rows in recorded if size == BATCH]
    assert len({rows for _, rows in packed}) >= 3
    for count, rows in packed:
        if limit == 1:
            assert rows == choose_rows(count, BATCH, LENGTH)
        assert count <= (rows or BATCH * LENGTH)
    assert all(rows == 0 for _, size, rows in recorded if size < BATCH)
    assert {size for _, size, _ in recorded} >= {BATCH, 3}


def run_captured(work, limit=3):
    """Runs a function of (runner, module), a client's, and returns the recorder."""
    recorder, module = FakeRecorder(limit), ClientModule("encoder", 3, model_options=OPTIONS)
    within(lambda runner: work(CudaRunner(runner.trainer, recorder), module))
    return recorder


def test_replicas_of_a_step_have_the_rows_of_the_one_with_most_tokens(recorded):
    def work(runner, module):
        made = text_jobs(module.copy_model_state(), labels(), (16, 16, 16))
        runner.run_all(module, [dataclasses.replace(job, epochs=1) for job in made])

    run_captured(work)
    for start in (0, 3):
        counts, _, rows = zip(*recorded[start : start + 3], strict=True)
        assert set(rows) == {choose_rows(max(counts), BATCH, LENGTH)}
        assert len(set(counts)) > 1


def test_every_number_of_rows_is_captured_once_in_one_pool(recorded):
    def work(runner, module):
        made = text_jobs(module.copy_model_state(), labels(), SIZES[:1])
        for _ in range(3):
            runner.run_all(module, made)

    recorder = run_captured(work, 1)
    kinds = {(size, rows) for _, size, rows in recorded}
    assert len(recorder.captured) == len(kinds) >= 4
    assert len(set(recorder.captured_pools)) == 1


def test_steps_under_deterministic_algorithms_are_not_packed(recorded, monkeypatch):
    """The number of rows depends on the clients that train at the same time."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    run_captured(
        lambda runner, module: runner.run_all(
            module, text_jobs(module.copy_model_state(), labels(), (17,))
        )
    )
    assert {rows for *_, rows in recorded} == {0}


def test_the_encoder_whose_passes_can_be_packed(monkeypatch):
    module, x = ClientModule("encoder", 3, model_options=OPTIONS), texts()
    monkeypatch.setattr(fast_encoder, "fusable", lambda x: True)
    with torch.autocast("cpu", torch.bfloat16):
        assert find_packable(module, x) is None  # not the fast version
        speed_up(module)
        assert find_packable(module, x) is module.model
        assert find_packable(module, x.float()) is None
        module.other = speed_up(ClientModule("encoder", 3, model_options=OPTIONS)).model
        assert find_packable(module, x) is None  # which of them gets the batch?
        del module.other
    assert find_packable(module, x) is None  # float32 runs as the library made it


@pytest.mark.parametrize(("batch", "length"), [(32, 64), (1, 7), (512, 64), (7, 33)])
def test_few_numbers_of_rows(batch, length):
    kinds = set()
    for count in range(batch, batch * length + 1, max(1, batch // 8)):
        rows = choose_rows(count, batch, length)
        assert rows == 0 or (count <= rows < batch * length and rows % 64 == 0)
        assert rows or count > batch * length - 64 * (1 + batch * length // (64 * MAX_KINDS))
        kinds.add(rows)
    assert len(kinds) <= MAX_KINDS
