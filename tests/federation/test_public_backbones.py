"""Weights that others have published are h_0 of a federation on pictures in folders."""

import pytest

pytest.importorskip("timm")

import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch.testing import assert_close
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from fedaux_pl.algorithms import FedAvg, FedClassMeans, FedCOF
from fedaux_pl.data import FederatedDataModule, ImageFolder
from fedaux_pl.engine import predict_features
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, Pretraining
from fedaux_pl.federation.given_h0 import read_h0
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.models import create_for, load_backbone
from fedaux_pl.scoring import Privacy
from tests.federations import FewDigits, create, fit, split

VIT = "timm/test_vit"
SHUFFLENET = "torchvision/shufflenet_v2_x0_5"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
COLORS = {"red": (200, 40, 40), "green": (40, 200, 40)}


@pytest.fixture
def no_training(monkeypatch):
    def pretrain(*_):
        raise AssertionError("h_0 was learned")

    monkeypatch.setattr(H0Source, "_learn", pretrain)


def picture(color, seed):
    """A picture of one color with noise, larger than the network's images."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(-30, 30, (48, 64, 3), generator=generator)
    pixels = (torch.tensor(color) + noise).to(torch.uint8)
    return Image.fromarray(pixels.numpy())


def pictures(root, size):
    """The data of two clients, in files that are read batch by batch."""
    for seed in range(48):
        client = ("north", "south")[seed % 2]
        name, color = list(COLORS.items())[seed // 2 % 2]
        for folder in (root / "private" / client / name, root / "public"):
            folder.mkdir(parents=True, exist_ok=True)
        picture(color, seed).save(root / "private" / client / name / f"{seed}.png")
        picture(color, seed + 100).save(root / "public" / f"{seed}.png")
    files = {"size": size, "cache_dir": root / "cache"}
    private = ImageFolder(root / "private", clients="first_level", test_fraction=0.25, **files)
    public = ImageFolder(root / "public", **files)
    return FederatedDataModule(private, public, negative_fraction=0.5, memory="disk")


def federation_of(name, weights, h0, algorithm=None, **options):
    """Clients of a network with published weights, of which the head alone is trained."""
    algorithm = algorithm or FedClassMeans(privacy=Privacy(epsilon=None))
    return create(
        algorithm,
        {name: 2},
        trained="head",
        pretraining=Pretraining(h0=str(h0)),
        model_options={"weights": weights},
        **options,
    )


def published(name, classes=1000):
    """A network of a library with random weights, in place of a download."""
    torch.manual_seed(0)
    library, _, network = name.partition("/")
    if library == "timm":
        return timm.create_model(network, num_classes=classes).eval()
    return torchvision.models.get_model(network, num_classes=classes).eval()


def standardized(x, name):
    config = timm.get_pretrained_cfg(name.partition("/")[2])
    constants = {"mean": config.mean, "std": config.std} if name == VIT else IMAGENET
    mean, std = (torch.tensor(constants[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (x.float() / 255 - mean) / std


def tiny_vit(folder):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "image_size": 32, "patch_size": 16}
    config = ViTConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(image_mean=[0.1, 0.2, 0.3], size=32).save_pretrained(folder)
    return folder


def test_one_message_on_a_checkpoint_of_timm(tmp_path, capsys, no_training):
    network = published(VIT)
    file = tmp_path / "model.safetensors"
    save_file(network.state_dict(), file, {"format": "pt"})
    data = pictures(tmp_path, 160)
    federation = federation_of(VIT, True, file)
    fit(tmp_path, federation, 2, data)
    told = capsys.readouterr().out
    assert f"h_0 of {VIT}: read from {file}, not learned" in told
    assert "its head is left out (head.bias, head.weight); images: mean=[0.5" in told
    x = data.test_examples.inputs[:8]
    with torch.no_grad():
        maps = network.forward_features(standardized(x, VIT))
        expected = network.forward_head(maps, pre_logits=True)
    assert_close(predict_features(federation.extractors()[VIT], x), expected)
    assert_close(predict_features(federation.students[VIT], x), expected)  # h is frozen
    assert federation.history[-1]["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("kind", "options"),
    [(FedClassMeans, {}), (FedClassMeans, {"classifier": "ridge"}), (FedCOF, {})],
    ids=["discriminant", "ridge", "FedCOF"],
)
def test_a_student_of_few_photos_has_the_teachers_classifier(kind, options, tmp_path):
    """30 photos do not determine a head of 1,280 features."""
    wide = "tests.models.own_networks.Wide"
    federation = create(
        kind(privacy=Privacy(epsilon=None), **options),
        {wide: 2},
        trained="head",
        pretraining=Pretraining(epochs=0),
        model_options={},
    )
    private = FewDigits(train=120, test=200)
    photos = FewDigits(auxiliary=60)
    data = split(2, private=private, auxiliary=photos, negative_fraction=0.5)
    fit(tmp_path, federation, 1, data)
    [entry] = federation.history
    assert entry["teachers/accuracy"] > 0.7
    assert entry[f"averaged_accuracy/{wide}"] > entry["teachers/accuracy"] - 0.05
    assert entry["accuracy"] > entry["teachers/accuracy"] - 0.05


def test_a_checkpoint_of_torchvision_is_trained(tmp_path, capsys, no_training):
    network = published(SHUFFLENET, classes=37)
    file = tmp_path / "shufflenet.pth"
    torch.save({"model": network.state_dict(), "epoch": 3}, file)
    federation = create(
        FedAvg(pretrained=True),
        {SHUFFLENET: 2},
        pretraining=Pretraining(h0=str(file)),
        model_options={"weights": "DEFAULT"},
    )
    data = pictures(tmp_path, 64)
    fit(tmp_path, federation, 1, data)
    assert "its head is left out (fc.weight, fc.bias)" in capsys.readouterr().out
    network.fc = torch.nn.Identity()
    x = data.test_examples.inputs[:8]
    with torch.no_grad():
        expected = network(standardized(x, SHUFFLENET))
    assert_close(predict_features(federation.extractors()[SHUFFLENET], x), expected)
    trained = federation.students[SHUFFLENET].network.conv1[0].weight
    assert not torch.equal(trained, network.conv1[0].weight)


def test_what_does_not_fit_is_named():
    def misfit(state, size=160, **options):
        model = create_for((3, size, size), VIT, 2, pretrained=False, **options)
        with pytest.raises(ConfigurationError) as error:
            read_h0(state, model)
        return str(error.value)

    state = published(VIT).state_dict()
    assert "set model_options.weights to true" in misfit(state)
    assert "or set both mean and std" in misfit(state, mean=0.5)
    shape = "1 entries are of another shape, such as 'network.pos_embed' (got (1, 101, 64), exp"
    assert shape in misfit(state, size=32, weights=True)
    other = published(SHUFFLENET).state_dict()
    assert "entries are missing, such as 'network.blocks.0" in misfit(other)
    state["extra"] = state.pop("cls_token")
    assert (
        "1 entries are missing, such as 'network.cls_token', 1 entries are unexpected, such "
        in (misfit(state, weights=True))
    )


def test_a_module_of_timm_is_h0_in_memory():
    network = published(VIT, classes=0)
    model = create_for((3, 160, 160), VIT, 2, pretrained=False, mean=0.5, std=0.5)
    weights, left_out = read_h0(network, model)
    assert left_out == []
    assert torch.equal(weights["network.cls_token"], network.cls_token)


def test_a_folder_of_transformers(tmp_path, capsys, no_training):
    folder = tiny_vit(tmp_path / "vit")
    data = pictures(tmp_path, 32)
    algorithm = FedClassMeans(privacy=Privacy(epsilon=None))
    federation = create(
        algorithm,
        {"image_encoder": 2},
        trained="head",
        pretraining=Pretraining(epochs=0),
        model_options={"source": str(folder)},
    )
    trainer = fit(tmp_path, federation, 2, data)
    told = capsys.readouterr().out
    assert f"h_0 of image_encoder: not learned, the weights of {folder}; 2 are left out" in told
    assert "images: mean=[0.1" in told
    x = data.test_examples.inputs[:8]
    network = ViTForImageClassification.from_pretrained(folder).eval().vit
    pixels = (x.float() / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.5
    with torch.no_grad():
        expected = network(pixels).last_hidden_state[:, 0]
    assert_close(predict_features(federation.extractors()["image_encoder"], x), expected)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    (folder / "model.safetensors").unlink()  # the checkpoint has the weights
    loaded = Federation.load_from_checkpoint(tmp_path / "last.ckpt")
    with torch.no_grad():
        assert_close(loaded.eval()(x), federation.eval()(x))


def test_auxiliary_heads_are_left_out(monkeypatch):
    cheap = lambda tensor, **_: torch.nn.init.normal_(tensor)  # noqa: E731 - the other takes seconds
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", cheap)
    network = torchvision.models.googlenet(num_classes=5, init_weights=False)
    model = create_for((3, 64, 64), "torchvision/googlenet", 2, pretrained=False, weights="DEFAULT")
    left_out = load_backbone(model, network.state_dict())
    assert {key.partition(".")[0] for key in left_out} == {"fc", "aux1", "aux2"}
    assert torch.equal(model.network.conv1.conv.weight, network.conv1.conv.weight)
