"""Fast versions change only the forward pass of a module."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.convolution.networks import FastBasicBlock, FastResNet8
from fedaux_pl.models import ResNet8, create_model

NAMES = ("resnet8", "mobilenetv2", "shufflenet")


def images(count=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)


def results(model):
    """Outputs, gradients and running statistics of training and evaluation."""
    found = []
    for training in (True, False):
        model.train(training).zero_grad()
        outputs = model(images())
        outputs.logsumexp(1).sum().backward()
        found += [outputs.detach(), *(parameter.grad for parameter in model.parameters())]
        found += [value.clone() for value in model.state_dict().values()]
    return found


def test_networks_of_others_stay_as_they_are():
    model = create_model("torchvision/resnet18", 10)
    kinds = [type(part) for part in model.network.modules()]
    assert BasicBlock in kinds
    speed_up(model)
    assert [type(part) for part in model.network.modules()] == kinds


@pytest.mark.parametrize(
    ("name", "norm"),
    [("resnet8", "batch"), ("mobilenetv2", "group"), ("shufflenet", "batch")],
)
def test_cpu_results_are_those_of_the_plain_version_bit_for_bit(name, norm):
    plain = create_model(name, 4, width=0.25, norm=norm)
    fast = speed_up(copy.deepcopy(plain))
    kinds = [[type(part) for part in model.modules()] for model in (fast, plain)]
    assert kinds[0] != kinds[1]
    assert all(map(issubclass, *kinds))
    for one, other in zip(results(fast), results(plain), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_state_copies_and_pickles_are_unaffected(name):
    model = create_model(name, 4, width=0.25).eval()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    assert speed_up(model) is model
    assert list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    types = [type(part) for part in model.modules()]
    expected = model(images())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert [type(part) for part in twin.modules()] == types
        assert torch.equal(twin(images()), expected)
    create_model(name, 4, width=0.25).load_state_dict(model.state_dict())


def test_hooks_stay_and_a_second_call_changes_nothing():
    model, seen = create_model("resnet8", 4, width=0.125).eval(), []
    for part in (model.layer1[0], model.relu, model.normalize):
        part.register_forward_hook(lambda module, given, output: seen.append(type(module)))
    speed_up(speed_up(model))(images())
    assert seen == [type(model.normalize), nn.ReLU, FastBasicBlock]


def test_user_subclasses_are_not_replaced():
    class OwnBlock(BasicBlock):
        def forward(self, x):
            return 2 * super().forward(x)

    class OwnResNet(ResNet8):
        def feature_map(self, x):
            return super().feature_map(x) + 1

    model = OwnResNet(4, width=0.125)
    model.layer1[0] = OwnBlock(8, 8)
    expected = model.eval()(images())
    speed_up(model)
    assert type(model) is OwnResNet
    assert type(model.layer1[0]) is OwnBlock
    assert type(model.layer2[0]) is FastBasicBlock
    assert torch.equal(model(images()), expected)


def test_submodules_of_any_module_are_replaced():
    model = nn.ModuleDict({"backbone": create_model("resnet8", 4, width=0.125)})
    assert type(speed_up(model)["backbone"]) is FastResNet8
