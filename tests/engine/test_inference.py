import copy
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.engine import (
    evaluating,
    inference,
    predict_features,
    predict_logits,
)
from fedaux_pl.engine.inference import (
    estimate_statistics,
    predict_private_features,
    prediction_batch_size,
    split_range,
)
from fedaux_pl.errors import PrivacyError
from fedaux_pl.models import create_model
from tests import texts
from tests.federations import network


@pytest.fixture
def model():
    return network()


def images(count=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("training", [True, False])
def test_predicting_changes_nothing(model, training):
    model.train(training)
    model.layer1.train(not training)
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    predict_logits(model, images())
    predict_features(model, images())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # and a training step afterwards updates the statistics
    model.train()
    model(images())
    assert int(model.bn1.num_batches_tracked) == int(before["bn1.num_batches_tracked"]) + 1
    assert not torch.equal(model.bn1.running_mean, before["bn1.running_mean"])


def test_running_statistics_are_evaluation_mode(model):
    x = images()
    expected = copy.deepcopy(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(predict_logits(model, x), expected(x))
        torch.testing.assert_close(predict_features(model, x), expected.features(x))


def test_the_batch_size_changes_nothing(model):
    x = images(20)
    torch.testing.assert_close(predict_logits(model, x, batch_size=7), predict_logits(model, x))
    assert predict_features(model, x, batch_size=7).shape == (20, model.feature_dim)


def test_inputs_are_predicted_in_batches(model, monkeypatch):
    x, seen = images(20), []
    features = model.features
    monkeypatch.setattr(model, "features", lambda part: seen.append(len(part)) or features(part))
    expected = predict_features(model, x)
    assert seen == [20]
    monkeypatch.setattr(inference, "BATCH_SIZE", 8)
    torch.testing.assert_close(predict_features(model, x), expected)
    predict_logits(model, x, batch_size=16)
    assert seen == [20, 8, 8, 4, 16, 4]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 20])
def test_batches_of_equal_size_hold_every_input_once(count):
    parts = split_range(count, 8, equal=True)
    assert {end - start for start, end, _ in parts} == {min(count, 8)}
    assert [i for start, end, drop in parts for i in range(start + drop, end)] == [*range(count)]


def test_cudnn_tries_no_kernels_for_a_rare_batch_size(model, monkeypatch):
    """The data of a client are often one small batch."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen, features = [], model.features
    monkeypatch.setattr(
        model, "features", lambda x: seen.append(torch.backends.cudnn.benchmark) or features(x)
    )
    predict_features(model, images(7), batch_size=8)
    predict_features(model, images(8), batch_size=8)
    predict_features(model, images(9), batch_size=8)
    assert seen == [False, True, True, True]
    assert torch.backends.cudnn.benchmark


@pytest.mark.cuda
def test_a_gpu_sees_batches_of_one_size(model, monkeypatch):
    """cuDNN would try its kernels for every other size."""
    x, seen = images(20).cuda(), []
    model = model.cuda()
    features = model.features
    monkeypatch.setattr(model, "features", lambda part: seen.append(len(part)) or features(part))
    expected = predict_features(model, x)
    found = predict_features(model, x, batch_size=8)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)  # TF32 has 10 bits
    assert seen == [20, 8, 8, 8]


def test_the_batch_size_depends_on_the_model_and_its_precision(model, monkeypatch):
    on_cpu = images(2)
    on_cuda = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), ndim=2)
    assert prediction_batch_size(model, on_cpu) == 2048
    assert prediction_batch_size(torch.nn.Linear(2, 2), on_cpu) == 2048
    assert prediction_batch_size(model, on_cpu, captured=True) == 5120
    large = [torch.empty(1, 3, size, size) for size in (32, 64, 224)]
    assert [prediction_batch_size(model, x) for x in large] == [2048, 512, 64]
    # smaller in float32 on CUDA
    assert prediction_batch_size(model, on_cuda) == 1280
    assert prediction_batch_size(model, on_cuda, captured=True) == 1280
    assert prediction_batch_size(copy.deepcopy(model).bfloat16(), on_cuda) == 2048
    # texts are sorted by length
    encoder = create_model("tinybert", 2, pretrained=False)
    assert prediction_batch_size(encoder, on_cpu) == 131_072
    assert prediction_batch_size(encoder, on_cuda) == 131_072
    monkeypatch.setattr(inference, "BATCH_SIZE", 30)
    assert prediction_batch_size(model, on_cuda) == 30
    monkeypatch.setattr(inference, "FLOAT32_BATCH_SIZE", 8)
    assert prediction_batch_size(model, on_cuda) == 8
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    assert prediction_batch_size(model, on_cuda) == 30


def test_predictions_use_that_batch_size(model, monkeypatch):
    x, seen = images(20), []
    features = model.features
    monkeypatch.setattr(model, "features", lambda part: seen.append(len(part)) or features(part))
    monkeypatch.setattr(inference, "prediction_batch_size", lambda model, inputs: 8)
    predict_features(model, x)
    predict_features(model, x, batch_size=16)
    assert seen == [8, 8, 4, 16, 4]


def one_batch_and_an_error():
    yield [images(4)]
    raise RuntimeError


def test_modes_are_restored_after_an_error(model):
    model.train()
    counter, momentum = model.bn1.num_batches_tracked, model.bn1.momentum
    with pytest.raises(RuntimeError), evaluating(model):
        raise RuntimeError
    with pytest.raises(RuntimeError):
        estimate_statistics(model, one_batch_and_an_error())
    assert model.training
    assert model.bn1.training
    assert model.bn1.momentum == momentum
    assert model.bn1.num_batches_tracked is counter


def test_private_features_of_a_text_depend_on_no_other_text(monkeypatch):
    """In one batch, a longer text can round the features of the others in another way."""
    model = texts.encoder().eval()
    short = texts.ids(*[7] * 30)
    neighbor = torch.cat([texts.ids(20, seed=1), short[1:]])
    shapes, encode = [], model._encode
    monkeypatch.setattr(model, "_encode", lambda x: shapes.append(x.shape) or encode(x))
    one, other = (predict_private_features(model, x) for x in (short, neighbor))
    assert set(shapes) == {(1, 7), (1, 20)}
    assert torch.equal(one[1:], other[1:])
    torch.testing.assert_close(one, predict_features(model, short))


def test_private_features_of_images_are_those_of_a_batch(model):
    assert torch.equal(predict_private_features(model, images()), predict_features(model, images()))


def test_a_batchnorm_without_running_statistics_has_no_private_features(model):
    model.bn1 = torch.nn.BatchNorm2d(model.bn1.num_features, track_running_stats=False)
    with pytest.raises(PrivacyError, match="the features of a record depend on all others"):
        predict_private_features(model, images())
