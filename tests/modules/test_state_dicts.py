"""State dicts that are copied at once equal those that PyTorch copies tensor by tensor."""

import pytest
import torch
from torch import nn

from fedaux_pl.modules.state_dicts import _plain_state, copy_state, copy_tensors, load_state


def network(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    net(torch.randn(seed + 2, 3, 5, 5))
    return net


def test_a_copy_shares_no_memory():
    net = network(0)
    copy = copy_state(net)
    expected = {key: value.clone() for key, value in net.state_dict().items()}
    for parameter in net.parameters():
        parameter.data.zero_()
    net[1].num_batches_tracked.add_(5)
    assert copy.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(copy[key], value)
        assert copy[key].dtype == value.dtype
        assert copy[key].stride() == value.stride()
        assert not copy[key].requires_grad


def test_a_state_is_loaded_in_place():
    net, other = network(0), network(1)
    places = {key: value.data_ptr() for key, value in net.state_dict().items()}
    net[1].num_batches_tracked.add_(7)
    load_state(net, other.state_dict())
    for key, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])
        assert value.data_ptr() == places[key]
    net(torch.randn(2, 3, 5, 5)).sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("0.bias"), "Missing key"),
        (lambda state: state.update(more=torch.zeros(1)), "Unexpected key"),
        (lambda state: state.update({"0.bias": torch.zeros(9)}), "size mismatch"),
    ],
)
def test_the_state_of_another_model_is_refused(change, message):
    net, state = network(0), network(1).state_dict()
    change(state)
    with pytest.raises(RuntimeError, match=message):
        load_state(net, state)


def test_hooks_are_called():
    """One returns copies, so the tensors of the model are not in it; one changes what is loaded."""
    net, other = network(0), network(1)
    net.register_state_dict_post_hook(
        lambda module, state, prefix, meta: state.update({k: v.clone() for k, v in state.items()})
    )
    load_state(net, other.state_dict())
    assert torch.equal(net[0].weight, other[0].weight)

    net, called = network(0), []
    net.register_load_state_dict_pre_hook(lambda *args: called.append(1))
    load_state(net, other.state_dict())
    assert called
    assert torch.equal(net[0].weight, other[0].weight)


def test_there_must_be_as_many_targets_as_sources():
    with pytest.raises(ValueError, match="argument 2"):
        copy_tensors([torch.zeros(1)], [])


def test_the_tensors_are_those_of_the_state_dict_in_its_order():
    net = nn.Sequential(network(0), nn.ModuleDict({"b": network(1), "a": nn.LayerNorm(3)}))
    net.register_buffer("persistent", torch.ones(2))
    net.register_buffer("temporary", torch.ones(2), persistent=False)
    net.register_parameter("missing", None)
    net[1]["shared"] = net[0]
    expected = net.state_dict()
    assert list(copy_state(net)) == list(expected)
    assert list(_plain_state(net)) == list(expected)
    for key, value in _plain_state(net).items():
        assert value.data_ptr() == expected[key].data_ptr()


class Extra(nn.Linear):
    def get_extra_state(self):
        return torch.tensor(3)

    def set_extra_state(self, state):
        self.loaded = state


class Renaming(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "other"] = self.weight.detach() * 2


@pytest.mark.parametrize("layer", [Extra(2, 2), Renaming(2, 2)])
def test_modules_that_override_the_state_dict(layer):
    net = nn.Sequential(layer)
    assert not _plain_state(net)
    assert copy_state(net).keys() == net.state_dict().keys()
    if isinstance(layer, Extra):
        load_state(net, copy_state(net))
        assert layer.loaded == 3


@pytest.mark.parametrize("name", ["state_dict", "_save_to_state_dict", "get_extra_state"])
def test_modules_whose_method_is_replaced(name):
    net = nn.Sequential(network(0))
    setattr(net[0], name, lambda *args, **kwargs: {})
    assert not _plain_state(net)
