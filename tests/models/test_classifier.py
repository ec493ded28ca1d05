"""Properties of all architectures."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from fedaux_pl.models import FeatureClassifier, create_model, model_names

NAMES = ("mobilenetv2", "resnet8", "shufflenet")
FEATURE_DIMS = {"resnet8": 512, "mobilenetv2": 640, "shufflenet": 800}


def narrow(name: str, num_classes: int = 5, **options) -> FeatureClassifier:
    torch.manual_seed(0)
    return create_model(name, num_classes, **{"width": 0.25, **options})


def images(n: int, channels: int = 3, size: int = 16, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def calibrated(name: str) -> FeatureClassifier:
    """A model in eval mode with fitted running statistics, so that activations do not vanish."""
    model = narrow(name).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(images(8, seed=9))
        nn.init.normal_(model.head.weight)
    return model.eval()


def test_names():
    assert model_names() == tuple(sorted((*NAMES, "encoder", "image_encoder", "tinybert")))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_have_the_feature_dim_of_the_paper(name):
    model = create_model(name, 7)
    assert model.feature_dim == FEATURE_DIMS[name]
    assert isinstance(model.head, nn.Linear)
    assert model.head.weight.shape == (7, FEATURE_DIMS[name])
    assert model.head.bias.shape == (7,)
    with torch.no_grad():
        assert model.eval().features(images(1, size=8)).shape == (1, FEATURE_DIMS[name])


@pytest.mark.parametrize(("channels", "norm"), [(1, "batch"), (3, "group")])
@pytest.mark.parametrize("name", NAMES)
def test_image_sizes(name, channels, norm):
    model = narrow(name, in_channels=channels, norm=norm)
    for size in (8, 29, 96):
        with torch.no_grad():
            features = model.features(images(2, channels, size))
        assert features.shape == (2, model.feature_dim)
        assert features.isfinite().all()
        # features that are the same for all images would carry nothing to the head
        assert (features[0] - features[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_features_average_the_last_map_and_the_head_maps_them_to_outputs(name):
    model = calibrated(name)
    x = images(2, size=32)
    with torch.no_grad():
        maps = model.feature_map((x / 255 - 0.5) / 0.25)
        assert maps.shape == (2, model.feature_dim, 4, 4)
        features = model.features(x)
        assert_close(features, maps.mean((2, 3)))
        # forward is the head of the features
        outputs = model(x)
        assert features.std() > 0.1
        assert_close(outputs, features @ model.head.weight.T + model.head.bias)
        # uint8 and floats in [0, 1] agree
        assert_close(outputs, model(x.float() / 255), rtol=1e-4, atol=1e-4)
        assert (outputs - model(x.float())).norm() > 0.1 * outputs.norm()
        # eight bits of precision add up over 50 layers with random weights; unrelated outputs
        # would have a distance of 1.4
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(x)
        assert rounded.dtype == torch.bfloat16
        assert (rounded.float() - outputs).norm() < 0.5 * outputs.norm()
        # and nothing else: the outputs follow the head when it is replaced
        model.head = nn.Linear(model.feature_dim, 2)
        assert_close(model(x), model.head(features))


@pytest.mark.parametrize("name", NAMES)
def test_group_norm_treats_images_independently(name):
    group, batch = (narrow(name, norm=norm).train() for norm in ("group", "batch"))
    kinds = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
    assert not any(isinstance(m, kinds) for m in group.modules())
    assert not any(isinstance(m, nn.GroupNorm) for m in batch.modules())
    assert list(group.buffers(recurse=True)) == [group.normalize.mean, group.normalize.std]

    first, second = images(4), images(4, seed=2)
    second[0] = first[0]
    with torch.no_grad():
        assert_close(group(first)[0], group(second)[0])
        assert not torch.allclose(batch(first)[0], batch(second)[0], rtol=1e-2)
    group(images(1, size=8)).logsumexp(1).sum().backward()  # batch norm needs two
    assert group.head.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_width_changes_channels(name):
    models = [create_model(name, 10, width=w) for w in (0.01, 0.3, 0.5, 1.0)]
    dims = [m.feature_dim for m in models]
    assert dims == sorted(set(dims))
    assert dims[2] * 2 == pytest.approx(dims[3], rel=0.05)
    assert all(d % 8 == 0 for d in dims)
    # convolutions are quadratic in the width and little else counts
    half, whole = (sum(p.numel() for p in model.parameters()) for model in models[2:])
    assert 3 < whole / half < 4.2
    with torch.no_grad():
        assert models[0](images(2, size=8)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_holds_no_input_constants(name):
    model = narrow(name, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    state = model.state_dict()
    assert not any("normalize" in key or "mean" in key.split(".") for key in state)
    expected = {key for key, _ in model.named_parameters()}
    stats = ("running_mean", "running_var", "num_batches_tracked")
    assert {k for k in state if not k.endswith(stats)} == expected
    other = narrow(name)
    other.load_state_dict(state)
    assert other.normalize.mean.flatten().tolist() == [0.5]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name, norm):
    model = narrow(name, norm=norm).train()
    F.cross_entropy(model(images(8)), torch.arange(8) % 5).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key
