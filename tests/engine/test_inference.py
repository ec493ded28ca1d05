import copy
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.engine import (
    batch_statistics,
    evaluating,
    inference,
    predict_features,
    predict_logits,
)
from fedaux_pl.models import create_model
from tests.federations import network


@pytest.fixture
def model():
    return network()


def images(count=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("training", [True, False])
def test_predicting_changes_nothing(model, statistics, training):
    model.train(training)
    model.layer1.train(not training)
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    predict_logits(model, images(), statistics)
    predict_features(model, images(), statistics)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # and the statistics of a training step afterwards move as ever
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


def test_batch_statistics_are_training_mode(model):
    x = images()
    expected = copy.deepcopy(model).train()
    with torch.no_grad():
        torch.testing.assert_close(predict_logits(model, x, "batch"), expected(x))
    assert not torch.allclose(predict_logits(model, x, "batch"), predict_logits(model, x))


def test_parts(model):
    """In parts the same as at once, save that the statistics of a batch are those of a part."""
    x = images(20)
    torch.testing.assert_close(predict_logits(model, x, batch_size=7), predict_logits(model, x))
    halves = [predict_logits(model, part, "batch") for part in x.split(10)]
    torch.testing.assert_close(predict_logits(model, x, "batch", batch_size=10), torch.cat(halves))
    assert predict_features(model, x, batch_size=7).shape == (20, model.feature_dim)


def test_a_model_says_how_many_inputs_it_takes_at_a_time(model, monkeypatch):
    x, seen = images(20), []
    features = model.features
    monkeypatch.setattr(model, "features", lambda part: seen.append(len(part)) or features(part))
    expected = predict_features(model, x)
    assert seen == [20]
    monkeypatch.setattr(type(model), "rows_at_once", 8)
    torch.testing.assert_close(predict_features(model, x), expected)
    predict_logits(model, x, batch_size=16)
    assert seen == [20, 8, 8, 4, 16, 4]
    # of texts many, since they are sorted by length
    assert create_model("tinybert", 2, pretrained=False).rows_at_once > 10_000


def test_full_precision_takes_fewer_at_a_time_on_a_gpu(model, monkeypatch):
    on_a_gpu = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    assert inference.fewer_rows(model, on_a_gpu, 2048) == 512
    assert inference.fewer_rows(model, on_a_gpu, 30) == 8
    assert inference.fewer_rows(model, images(2), 2048) == 2048
    assert inference.fewer_rows(copy.deepcopy(model).bfloat16(), on_a_gpu, 2048) == 2048
    encoder = create_model("tinybert", 2, pretrained=False)
    assert inference.fewer_rows(encoder, on_a_gpu, 2048) == 2048
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    assert inference.fewer_rows(model, on_a_gpu, 2048) == 2048


def test_fewer_at_a_time_are_the_same(model, monkeypatch):
    x, seen = images(20), []
    features = model.features
    monkeypatch.setattr(model, "features", lambda part: seen.append(len(part)) or features(part))
    expected = predict_features(model, x)
    monkeypatch.setattr(inference, "fewer_rows", lambda model, inputs, rows: rows // 256)
    torch.testing.assert_close(predict_features(model, x), expected)
    assert seen == [20, 8, 8, 4]
    predict_features(model, x, "batch")  # statistics depend on the parts
    predict_features(model, x, batch_size=16)
    assert seen[4:] == [20, 16, 4]


def test_modes_are_restored_after_an_error(model):
    model.train()
    momentum = model.bn1.momentum
    for context in (evaluating(model, "batch"), batch_statistics(model)):
        with pytest.raises(RuntimeError), context:
            raise RuntimeError
    assert model.training
    assert model.bn1.training
    assert model.bn1.momentum == momentum
