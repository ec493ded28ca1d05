"""Passes that are recorded say what the network says, with whatever weights it is given."""

import copy

import pytest
import torch

from fedaux_pl.engine import StageRunner, forwards, predict_logits
from fedaux_pl.engine.forwards import RecordedForward
from fedaux_pl.engine.graphs import CudaGraphs
from tests.federations import create, fit, network, split
from tests.recorders import Counted

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(count, device="cpu"):
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return drawn.to(device)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(forwards, "PART", 8)


def test_other_weights_and_inputs_in_the_same_places():
    first, second = network(0), network(1)
    before = copy.deepcopy(first.state_dict())
    recorder = Counted()
    forward = RecordedForward(first, recorder)
    said = []
    for model, x in ((first, images(8)), (second, images(8)), (second, images(19))):
        state = model.state_dict()
        said.append((forward(state, x), predict_logits(model, x)))
    for found, expected in said:  # at the end: none is written over by those after it
        torch.testing.assert_close(found, expected)
    # the first pass of eight images is ordinary, and so is that of seven; of six there was but one
    assert (recorder.recorded, recorder.replayed) == (2, 2)
    assert all(torch.equal(value, before[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize(("count", "sizes"), [(24, [8] * 3), (25, [7, 6, 6, 6]), (3, [3])])
def test_parts_are_as_equal_as_can_be(count, sizes, monkeypatch):
    """A small last one would keep a GPU as long as a larger."""
    model, seen = network(0), []
    forward = RecordedForward(model, Counted())
    monkeypatch.setattr(forward, "_predict", lambda x: seen.append(len(x)) or x)
    forward(model.state_dict(), images(count))
    assert seen == sizes


def test_parts_are_smaller_where_they_would_take_much_memory(monkeypatch):
    model, seen = network(0), []
    forward = RecordedForward(model, Counted())
    monkeypatch.setattr(forwards, "fewer_rows", lambda model, inputs, rows: rows // 4)
    monkeypatch.setattr(forward, "_predict", lambda x: seen.append(len(x)) or x)
    forward(model.state_dict(), images(7))
    assert seen == [2, 2, 2, 1]


def test_a_pass_of_another_size_or_precision_is_another_one():
    model, recorder = network(0), Counted()
    forward = RecordedForward(model, recorder)
    for _ in range(3):
        forward(model.state_dict(), images(8))
        forward(model.state_dict(), images(5))
        with torch.autocast("cpu", torch.bfloat16):
            forward(model.state_dict(), images(8))
    assert (recorder.recorded, recorder.replayed) == (3, 6)


def test_nobody_asks_for_gradients_or_for_training_mode():
    model = network(0).train()
    forward = RecordedForward(model, Counted())
    logits = [forward(model.state_dict(), images(8)) for _ in range(2)]
    assert not any(part.requires_grad for part in logits)
    torch.testing.assert_close(logits[0], logits[1])
    assert model.training


def recorded_in(tmp_path, monkeypatch, **options):
    """The passes that a federation of two rounds records."""
    recorder = Counted()
    plain = StageRunner.__init__

    def with_recorder(self, trainer):
        plain(self, trainer)
        self.recorder = recorder

    monkeypatch.setattr(StageRunner, "__init__", with_recorder)
    monkeypatch.setattr(StageRunner, "_recordable", lambda *_: None)
    federation = create(**options)
    fit(tmp_path, federation, 2, split(3))
    return federation, recorder


def test_a_federation_that_records_is_one_that_does_not(tmp_path, monkeypatch):
    plain = create()
    fit(tmp_path, plain, 2, split(3))
    federation, recorder = recorded_in(tmp_path, monkeypatch)
    assert recorder.replayed > recorder.recorded > 0
    for key, value in plain.students.state_dict().items():
        torch.testing.assert_close(federation.students.state_dict()[key], value)
    assert [r["averaged_accuracy/resnet8"] for r in federation.history] == [
        r["averaged_accuracy/resnet8"] for r in plain.history
    ]


@pytest.mark.parametrize("options", [{"batchnorm": "batch"}, {"train": "head"}])
def test_what_depends_on_a_batch_or_is_known_is_not_recorded(tmp_path, monkeypatch, options):
    _, recorder = recorded_in(tmp_path, monkeypatch, **options)
    assert recorder.recorded == 0


@needs_gpu
@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
def test_recorded_on_a_gpu(precision):
    graphs = CudaGraphs(torch.device("cuda"))
    models = [network(seed).cuda().to(memory_format=torch.channels_last) for seed in range(3)]
    forward = RecordedForward(models[0], graphs)
    x = images(21, "cuda")
    with torch.autocast("cuda", precision or torch.bfloat16, enabled=precision is not None):
        for _ in range(2):
            found = [forward(model.state_dict(), x) for model in models]
        expected = [predict_logits(model, x, batch_size=8) for model in models]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-2 if precision else 1e-4, rtol=1e-2)
    assert not torch.allclose(found[0], found[1])
