"""The argument ``model`` of all modules: classes of a given network, reloading, h_0 in a file."""

import pytest
import torch
from torch import nn

from fedaux_pl.models import create_model, load_backbone
from fedaux_pl.modules import (
    ClientModule,
    DistillationModule,
    LanguageModeling,
    OptimizerSettings,
    ScoringHead,
    SimCLR,
)
from tests.models.own_networks import Plain
from tests.modules.conftest import assert_same_weights, loader
from tests.texts import encoder


class Images(Plain):
    """Reads uint8 images."""

    def features(self, x):
        return super().features(x.float() / 255)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("kind", [ClientModule, DistillationModule])
def test_the_number_of_classes_is_that_of_the_head(kind):
    module = kind(Images(7))
    assert module.num_classes == 7
    assert module.val_metrics["accuracy"].num_classes == 7
    assert kind("resnet8", model_options={"width": 0.125}).num_classes == 10
    with pytest.raises(ValueError, match="the model has 7 outputs, but num_classes is 4"):
        kind(Images(7), 4)
    network = Images(7)
    network.head = nn.Sequential(network.head)
    network.feature_dim = 8
    with pytest.raises(ValueError, match=r"head of Images does not say .*: pass num_classes"):
        kind(network)
    assert kind(network, 7).num_classes == 7


def test_feature_dim_is_that_of_the_head():
    assert SimCLR(Images(7)).backbone.feature_dim == 8


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        (ClientModule, lambda: Images(7)),
        (DistillationModule, lambda: Images(7)),
        (SimCLR, lambda: Images(7)),
        (ScoringHead, lambda: Images(7)),
        (LanguageModeling, encoder),
    ],
)
def test_reloading_says_in_one_line_what_to_pass(trainer, tmp_path, kind, network):
    module = kind(network())
    fit = trainer()
    fit.strategy.connect(module)
    fit.save_checkpoint(tmp_path / "own.ckpt", weights_only=True)
    name = type(network()).__name__
    with pytest.raises(ValueError, match=f"pass model=..., the {name} that was trained") as info:
        kind.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True)
    assert "\n" not in str(info.value)
    again = kind.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True, model=network())
    assert_same_weights(_network(module), _network(again))


def _network(module):
    return getattr(module, "model", None) or module.backbone


def test_a_pre_trained_backbone_goes_to_a_file(trainer, digits, tmp_path):
    options = {"in_channels": 1, "width": 0.125}
    module = SimCLR("resnet8", model_options=options)
    trainer(max_steps=1).fit(module, loader(digits.auxiliary()[:16], batch_size=8))
    path, x = module.save_backbone(tmp_path / "h0.safetensors"), digits.test().inputs[:16]
    for source in (path, module.backbone_state()):
        model = create_model("resnet8", 10, **options)
        head = model.head.weight.clone()
        load_backbone(model, source)
        assert torch.equal(model.eval().features(x), module.eval()(x))
        assert torch.equal(model.head.weight, head)
    with pytest.raises(ValueError, match=r'of resnet8 {"in_channels": 1, "width": 0.125}, are not'):
        load_backbone(create_model("resnet8", 10, width=0.125), path)


class OwnClient(ClientModule):
    """Its constructor takes the network, too, and an option of its own."""

    def __init__(self, model, warmup=0, **options):
        super().__init__(model, **options)
        self.warmup = warmup


def test_a_subclass_saves_no_network_either(trainer, tmp_path):
    fit = trainer()
    fit.strategy.connect(OwnClient(Images(7), warmup=3, optimizer=OptimizerSettings(lr=0.5)))
    fit.save_checkpoint(tmp_path / "own.ckpt", weights_only=True)
    again = OwnClient.load_from_checkpoint(
        tmp_path / "own.ckpt", weights_only=True, model=Images(7)
    )
    assert (again.warmup, again.hparams.lr) == (3, 0.5)
    with pytest.raises(ValueError, match=r"pass model=..., the Images"):
        OwnClient.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True)
