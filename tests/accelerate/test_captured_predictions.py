"""Captured predictions are those of the model, with any weights."""

import copy
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from fedaux_pl.accelerate import CudaRunner
from fedaux_pl.accelerate.recording.captured_predictions import CapturedPredictor
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs
from fedaux_pl.engine import inference, predict_features, predict_logits
from fedaux_pl.federation import create_runner
from tests.accelerate.recorders import FakeRecorder
from tests.engine.test_stage import within
from tests.federations import create, fit, network, split


def images(count, device="cpu"):
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return drawn.to(device)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(inference, "CAPTURED_BATCH_SIZE", 8)


def test_other_weights_and_inputs_in_the_same_memory():
    first, second = network(0).train(), network(1)
    before = copy.deepcopy(first.state_dict())
    recorder = FakeRecorder()
    predictor = CapturedPredictor(first, recorder)
    predictions = []
    for model, x in ((first, images(8)), (second, images(8)), (second, images(19))):
        state = model.state_dict()
        predictions.append((predictor.predict(state, x), predict_logits(model, x)))
    for found, expected in predictions:  # at the end: later ones do not overwrite earlier ones
        assert_close(found, expected)
        assert not found.requires_grad
    # passes of 8, 8, 7, 7 and 7 images: the first of each size is not captured
    assert (len(recorder.captured), recorder.replayed) == (2, 3)
    assert all(torch.equal(value, before[key]) for key, value in first.state_dict().items())
    assert first.training


@pytest.mark.parametrize(("count", "sizes"), [(24, [8] * 3), (25, [7] * 4), (9, [5, 5]), (3, [3])])
def test_batches_have_equal_sizes(count, sizes, monkeypatch):
    """Each size is compiled and captured; the last batch can repeat samples."""
    model, seen = network(0), []
    predictor = CapturedPredictor(model, FakeRecorder())
    monkeypatch.setattr(predictor, "_predict_batch", lambda x: seen.append(len(x)) or x)
    inputs = images(count)
    assert torch.equal(predictor.predict(model.state_dict(), inputs), inputs)
    assert seen == sizes


def test_each_size_and_precision_is_captured():
    model, recorder = network(0), FakeRecorder()
    predictor = CapturedPredictor(model, recorder)
    for _ in range(3):
        predictor.predict(model.state_dict(), images(8))
        predictor.predict(model.state_dict(), images(5))
        with torch.autocast("cpu", torch.bfloat16):
            predictor.predict(model.state_dict(), images(8))
    assert (len(recorder.captured), recorder.replayed) == (3, 6)


def fit_captured(tmp_path, monkeypatch, **options):
    """A federation of two rounds that captures its predictions, but not its steps."""
    recorder = FakeRecorder(obstacle="predictions only")
    monkeypatch.setattr(create_runner, "StageRunner", partial(CudaRunner, recorder=recorder))
    federation = create(**options)
    fit(tmp_path, federation, 2, split(3))
    return federation, recorder


def test_a_federation_with_captured_predictions_is_one_without(tmp_path, monkeypatch):
    plain = create()
    fit(tmp_path, plain, 2, split(3))
    federation, recorder = fit_captured(tmp_path, monkeypatch)
    assert recorder.replayed > len(recorder.captured) > 0
    for key, value in plain.students.state_dict().items():
        assert_close(federation.students.state_dict()[key], value)
    assert [r["averaged_accuracy/resnet8"] for r in federation.history] == [
        r["averaged_accuracy/resnet8"] for r in plain.history
    ]


def test_predictions_from_fixed_features_are_not_captured(tmp_path, monkeypatch):
    _, recorder = fit_captured(tmp_path, monkeypatch, trained="head")
    assert not recorder.captured


@pytest.mark.cuda
@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
def test_captured_on_a_gpu(precision):
    graphs = CudaGraphs(torch.device("cuda"))
    models = [network(seed).cuda().to(memory_format=torch.channels_last) for seed in range(3)]
    predictor = CapturedPredictor(models[0], graphs)
    x = images(21, "cuda")
    with torch.autocast("cuda", precision or torch.bfloat16, enabled=precision is not None):
        for _ in range(2):
            found = [predictor.predict(model.state_dict(), x) for model in models]
        expected = [predict_logits(model, x, batch_size=8) for model in models]
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-2 if precision else 1e-4, rtol=1e-2)
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize(("fixed_size", "compiled"), [(True, [8]), (False, [])])
def test_kernels_of_features_are_compiled_with_one_batch(fixed_size, compiled, monkeypatch):
    """Not with a batch of texts, which may be all of them."""
    monkeypatch.setattr(inference, "BATCH_SIZE", 8)
    model, x = network(0), images(24)
    model.fixed_size_inputs = fixed_size
    expected, sizes, compute = predict_features(model, x), [], model.features
    monkeypatch.setattr(model, "features", lambda x: sizes.append(len(x)) or compute(x))

    class Recorder(FakeRecorder):
        @contextmanager
        def compiling(self):
            yield
            assert sizes == compiled

    found = within(lambda runner: CudaRunner(runner.trainer, Recorder()).predict_features(model, x))
    assert torch.equal(found, expected)
    assert sizes == compiled + ([8] * 3 if fixed_size else [24])
