"""State dicts that are copied at once equal those that PyTorch copies tensor by tensor."""

import pytest
import torch
from torch import nn

from fedaux_pl.modules.state_dicts import copy_state, copy_tensors


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


def test_there_must_be_as_many_targets_as_sources():
    with pytest.raises(ValueError, match="argument 2"):
        copy_tensors([torch.zeros(1)], [])
