"""Image encoders of the transformers library."""

import json

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModel, Dinov2Config, ResNetConfig, SiglipVisionConfig, ViTConfig

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import check_model, create_for, create_model, load_exported, save_ensemble

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
SIZES = {"image_size": 32, **SMALL}
CONFIGS = {
    "vit": ViTConfig(intermediate_size=32, patch_size=16, **SIZES),
    "dinov2": Dinov2Config(patch_size=16, **SIZES),
    "siglip": SiglipVisionConfig(intermediate_size=32, patch_size=16, **SIZES),
    "resnet": ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.2, 0.2],
}


@pytest.fixture
def folder(tmp_path):
    """Writes an encoder of a kind; entries of its image processor can be replaced."""

    def write(kind="vit", **changes):
        torch.manual_seed(0)
        AutoModel.from_config(CONFIGS[kind]).save_pretrained(tmp_path)
        text = json.dumps(PROCESSOR | changes)
        (tmp_path / "preprocessor_config.json").write_text(text)
        return tmp_path

    return write


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("vit", "cls"), ("vit", "mean"), ("dinov2", "cls"), ("siglip", "mean"), ("resnet", "cls")],
)
def test_features_are_those_of_the_library(folder, kind, pooling):
    source = folder(kind)
    options = {"source": str(source), "pooling": pooling}
    model = create_for((3, 32, 32), "image_encoder", 4, pretrained=True, **options).eval()
    x = images()
    model.check_inputs(x)
    mean, std = (torch.tensor(PROCESSOR[f"image_{k}"]).view(3, 1, 1) for k in ("mean", "std"))
    with torch.no_grad():
        library = AutoModel.from_pretrained(source).eval()
        output = library(pixel_values=(x.float() / 255 - mean) / std)
        states = output.last_hidden_state
        features = model.features(x)
    if kind == "resnet":
        expected = output.pooler_output.flatten(1)
    else:
        expected = states[:, 0] if pooling == "cls" else states.mean(dim=1)
    assert_close(features, expected)
    assert features.shape == (3, model.feature_dim)


def test_every_parameter_is_trained(folder):
    model = create_model("image_encoder", 4, source=folder())
    model(images()).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_its_export_needs_no_folder(folder, tmp_path):
    model = create_model("image_encoder", 3, source=str(folder()), std=0.3).eval()
    settings = {"batchnorm_statistics": "running"}
    federation = {"classes": ["a", "b", "c"], "input_shape": [3, 32, 32], "settings": settings}
    save_ensemble(tmp_path / "export", {"image_encoder": model}, federation)
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with torch.no_grad():
        expected = model(images()).softmax(dim=-1)
        assert_close(load_exported(tmp_path / "export")(images()), expected)


def test_wrong_folders_and_options(folder):
    source = folder("siglip")
    with pytest.raises(ValueError, match="no class token: set pooling to mean"):
        create_model("image_encoder", 2, source=source).check_inputs(images())
    with pytest.raises(ValueError, match=r"cannot read images of 64x64 pixels .*enlarge them"):
        create_model("image_encoder", 2, source=folder()).check_inputs(images().repeat(1, 1, 2, 2))
    with pytest.raises(ConfigurationError, match=r"rescale_factor 0.00784314; expected 1 / 255"):
        create_model("image_encoder", 2, source=folder(rescale_factor=2 / 255))
    (source / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"no readable preprocessor_config.json.*mean and"):
        create_model("image_encoder", 2, source=source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ConfigurationError, match=r"lacks 16 weights of a vit, such as .*layer"):
        create_model("image_encoder", 2, source=source, mean=0.5, std=0.5)
    with pytest.raises(ValueError, match="BertModel reads input_ids, not images alone; choose"):
        create_model("image_encoder", 2, config={"model_type": "bert", "vocab_size": 9, **SMALL})
    with pytest.raises(ValueError, match="either source, a folder or a name on the hub, or config"):
        check_model("image_encoder")
