"""Classifiers of torchvision and timm as f = g o h."""

import copy
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import check_model, complete_options, create_for, create_model, of_head
from fedaux_pl.models.adapted_network import AdaptedNetwork

FAMILIES = {  # features; the smallest of a family, or nearly so
    "resnet18": 512,
    "regnet_y_400mf": 440,
    "mobilenet_v2": 1280,
    "mobilenet_v3_small": 1024,
    "efficientnet_b0": 1280,
    "shufflenet_v2_x0_5": 1024,
    "densenet121": 1024,
    "googlenet": 1024,
    "convnext_tiny": 768,
    "swin_t": 768,
    "vit_b_32": 768,
}


def images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.fixture
def offline(monkeypatch):
    """Downloads fail; a test can set ``offline.state`` to have one succeed."""

    class Offline:
        state = None
        calls = 0

        def __call__(self, *args, **options):
            self.calls += 1
            if self.state is None:
                raise URLError("Name or service not known")
            return self.state

    download = Offline()
    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", download)
    return download


LARGE = ("densenet121", "convnext_tiny", "swin_t")  # without a line of code of their own
NAMES = [pytest.param(n, marks=[pytest.mark.nightly] * (n in LARGE)) for n in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_a_family_computes_what_torchvision_computes(name, monkeypatch):
    # the truncated normal distribution takes seconds
    cheap = lambda tensor, std=1.0, **others: nn.init.normal_(tensor, std=std)  # noqa: E731
    monkeypatch.setattr(nn.init, "trunc_normal_", cheap)
    torch.manual_seed(0)
    model = create_for((3, 64, 64), f"torchvision/{name}", 5, pretrained=False).eval()
    assert model.feature_dim == FAMILIES[name]
    assert isinstance(model.head, nn.Linear)
    assert {key for key in model.state_dict() if of_head(key)} == {"head.weight", "head.bias"}

    options = {"vit_b_32": {"image_size": 64}}.get(name, {})
    if name == "googlenet":
        options = {"aux_logits": False, "init_weights": False}
    # the weights are those of the model; RegNet cannot be created without its own
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        plain = torchvision.models.get_model(name, num_classes=5, **options).eval()
    prefix = "network."
    state = {k.removeprefix(prefix): v for k, v in model.state_dict().items() if not of_head(k)}
    own = {key: state.get(key) for key in plain.state_dict()}
    weight, bias = (key for key, value in own.items() if value is None)
    own[weight], own[bias] = model.head.weight, model.head.bias
    plain.load_state_dict(own, assign=True)
    x = images(2, 3, 64, 64)
    with torch.no_grad():
        expected = plain((x.float() / 255 - 0.5) / 0.25)
        assert torch.equal(model(x), expected)
        assert torch.equal(model.head(model.features(x)), expected)
        assert expected.std() > 0


def test_all_parameters_train_and_copies_are_independent():
    model = create_for((1, 8, 8), "torchvision/mobilenet_v3_small", 3, pretrained=False).train()
    model(images(4, 1, 8, 8)).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    other = copy.deepcopy(model)
    nn.init.zeros_(other.head.weight)
    assert model.head.weight.abs().sum() > 0


@pytest.mark.parametrize(("size", "stride"), [(63, 1), (64, 2)])
def test_resnets_have_a_small_stem_below_64_pixels(size, stride):
    model = create_for((1, size, size), "torchvision/resnet18", 3, pretrained=False)
    network = model.network
    assert network.conv1.stride == (stride, stride)
    assert network.conv1.in_channels == 1
    assert isinstance(network.maxpool, nn.Identity) == (stride == 1)
    maps = []
    network.layer4.register_forward_hook(lambda _m, _i, out: maps.append(out.shape[-1]))
    with torch.no_grad():
        model.eval()(images(1, 1, size, size))
    assert maps == [-(-size // (8 if stride == 1 else 32))]


def test_small_images_is_an_option():
    small = create_model("torchvision/resnet18", 3, small_images=True)
    assert small.network.conv1.kernel_size == (3, 3)
    large = create_for((3, 8, 8), "torchvision/resnet18", 3, pretrained=False, small_images=False)
    assert large.network.conv1.kernel_size == (7, 7)
    with pytest.raises(ValueError, match="for ResNets of torchvision, and torchvision/alexnet is"):
        create_model("torchvision/alexnet", 3, small_images=True)


def test_too_small_images_are_refused_with_a_word():
    model = create_for((3, 8, 8), "torchvision/alexnet", 3, pretrained=False)
    before = [module.training for module in model.modules()]
    with pytest.raises(
        ValueError,
        match=r"torchvision/alexnet cannot read images of 8x8 pixels \(.*too small\); "
        r"enlarge them with `size` of the data source, or choose",
    ):
        model.check_inputs(images(3, 3, 8, 8))
    assert [module.training for module in model.modules()] == before
    model.check_inputs(images(2, 3, 64, 64))


def test_a_size_is_tried_once():
    calls = []
    network = nn.Sequential(nn.Flatten(), nn.Identity())
    model = AdaptedNetwork(2, network, 12, name="pixels")
    network.register_forward_hook(lambda *_: calls.append(network.training))
    for _ in range(3):
        model.check_inputs(images(5, 3, 2, 2))
    assert calls == [False]
    assert network.training
    with pytest.raises(
        ValueError, match=r"pixels cannot .* 4x4 .*features have shape \(1, 48\), not \(1, 12\)"
    ):
        model.check_inputs(images(1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"expected images of shape \(N, 3, H, W\)"):
        model.check_inputs(images(1, 1, 2, 2))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 40, 40), r"vit_b_32 .*size \(40, 40\) \(Input shape indivisible by patch size"),
        ((3, 32, 64), r"vit_b_32 reads square images only, not of size \(32, 64\)"),
    ],
)
def test_a_vision_transformer_needs_whole_patches(shape, message):
    with pytest.raises(ValueError, match=message):
        create_for(shape, "torchvision/vit_b_32", 3, pretrained=False)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "torchvision/resnet81",
            {},
            ValueError,
            r"no classifier 'resnet81' \(did you mean resnet",
        ),
        ("resnet18", {}, ValueError, r"'resnet18' \(did you mean torchvision/resnet18\?\); pass"),
        ("torchvision/resnet18", {"weights": "DEFALT"}, ValueError, r"\(did you mean DEFAULT\?"),
        ("torchvision/resnet18", {"width": 2}, TypeError, r"has no option width=2.*small_images"),
        ("torchvision/resnet18", {"in_channels": 0}, ValueError, "in_channels=0 is too small"),
        ("torchvision/resnet18", {"std": 0.0}, ValueError, "std=0.0 is not allowed"),
        ("torchvision/resnet18", {"small_images": "yes"}, TypeError, "small_images='yes' is a str"),
        ("torchvision/resnet18", {"image_size": [1, 2, 3]}, ValueError, "one number or"),
    ],
)
def test_wrong_names_and_options(name, options, error, message):
    with pytest.raises(error, match=message):
        check_model(name, **options)


def test_a_network_without_a_linear_head_is_refused():
    with pytest.raises(ValueError, match=r"squeezenet1_1 has no linear head: .* is Conv2d; choose"):
        create_model("torchvision/squeezenet1_1", 3)


def test_options_are_completed_and_a_suffix_is_ignored():
    options = complete_options("torchvision/resnet18-b", small_images=True)
    assert options["small_images"] is True
    assert options["weights"] is None
    check_model("torchvision/resnet18-b")


def test_weights_are_loaded_only_if_asked_for(offline):
    name = "torchvision/resnet18"
    check_model(name, weights="DEFAULT")
    model = create_for((3, 32, 32), name, 3, pretrained=False, weights="DEFAULT")
    assert offline.calls == 0
    # predictions rebuild the model without the weights: the normalization is still theirs
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    with pytest.raises(ConfigurationError, match=r"cannot be downloaded \(.*not known.*: leave"):
        create_for((3, 32, 32), name, 3, pretrained=True, weights="imagenet1k_v1")


def test_loaded_weights_keep_the_filters(offline):
    torch.manual_seed(0)
    offline.state = torchvision.models.resnet18().state_dict()
    first = offline.state["conv1.weight"]
    model = create_model("torchvision/resnet18", 3, weights="DEFAULT", in_channels=1)
    # a gray image has the response that it has as an RGB image with the first filter thrice
    torch.testing.assert_close(model.network.conv1.weight, 3 * first[:, :1])
    assert torch.equal(model.network.layer1[0].conv1.weight, offline.state["layer1.0.conv1.weight"])
    assert model.head.out_features == 3
    assert model.normalize.mean.item() == pytest.approx((0.485 + 0.456 + 0.406) / 3)
    small = create_model("torchvision/resnet18", 3, weights="DEFAULT", small_images=True)
    assert torch.equal(small.network.conv1.weight, first[:, :, 2:5, 2:5])
    own = create_model("torchvision/resnet18", 3, weights="DEFAULT", mean=0.1, std=0.2)
    assert own.normalize.mean.item() == pytest.approx(0.1)


def test_timm():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = create_for((1, 32, 32), "timm/resnet10t", 5, pretrained=False).eval()
    x = images(2, 1, 32, 32)
    model.check_inputs(x)
    plain = timm.create_model("resnet10t", num_classes=5, in_chans=1).eval()
    state = {k.removeprefix("network."): v for k, v in model.state_dict().items()}
    state["fc.weight"], state["fc.bias"] = state.pop("head.weight"), state.pop("head.bias")
    plain.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(model(x), plain((x.float() / 255 - 0.5) / 0.25))
    transformer = create_for((3, 32, 32), "timm/vit_tiny_patch16_224", 5, pretrained=False)
    transformer.check_inputs(images(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"timm has no classifier 'resnet10tt' \(did you mean res"):
        check_model("timm/resnet10tt")
    with pytest.raises(TypeError, match="weights='yes' is a str; pass true or false"):
        check_model("timm/resnet10t", weights="yes")


def test_timm_is_an_extra(monkeypatch):
    monkeypatch.setattr("fedaux_pl.models.adapted_network.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="'timm/resnet10t' needs timm, which is not installed"):
        check_model("timm/resnet10t")


def test_errors_of_our_own_are_not_taken_for_the_librarys(monkeypatch):
    monkeypatch.setattr("fedaux_pl.models.adapted_network._take_head", lambda *_: len(3))
    with pytest.raises(TypeError, match=r"object of type 'int' has no len"):
        create_model("torchvision/mobilenet_v3_small", 3)
