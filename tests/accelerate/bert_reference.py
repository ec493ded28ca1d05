"""Sizes, dropout masks and comparisons for the checks of BERT's kernels."""

import pytest
import torch

from fedaux_pl.accelerate.bert import fast_encoder, fused_operations
from fedaux_pl.accelerate.bert.fused_operations import PassConfig
from fedaux_pl.accelerate.bert.packing import pack_texts
from tests.texts import CONFIG, encoder, ids

DROPPING = CONFIG | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}


@pytest.fixture
def small_tiles(monkeypatch):
    """Then small tensors have several tiles and parts, too."""
    monkeypatch.setattr(fused_operations, "TILE", 256)
    monkeypatch.setattr(fused_operations, "FEW_PARTS", 3)


@pytest.fixture
def fused_on_the_cpu(monkeypatch):
    monkeypatch.setattr(fast_encoder, "fusable", lambda x: True)


def perturbed(config, **options):
    """An encoder of which no parameter is zero or one."""
    model = encoder(config=config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def pass_config(x=None, width=24):
    return PassConfig(
        width=width,
        heads=2,
        eps=1e-5,
        padding_index=-1,
        causal=False,
        dtype=torch.float16,
        packing=pack_texts(ids(7, 3, 5, width=7) if x is None else x, 0, 0),
        rates=(0.0,) * 4,
        seeds=seeds(),
    )


def seeds(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


def is_kept(seed, shape, rate):
    """The mask of ``layer_norm_kernels.is_kept``, on integers that do not overflow."""

    def mix_bits(x):
        x = x ^ (x >> 16)
        x = multiply(x, 0x7FEB352D)
        x = x ^ (x >> 15)
        x = multiply(x, 0x846CA68B)
        return x ^ (x >> 16)

    def multiply(x, factor):
        low = (x & 0xFFFF) * factor
        return (low + ((((x >> 16) * factor) & 0xFFFF) << 16)) & 0xFFFFFFFF

    counter, seed = torch.arange(shape.numel()).view(shape), int(seed) % 2**64
    bits = mix_bits(mix_bits(counter ^ (seed & 0xFFFFFFFF)) ^ (seed >> 32))
    return (bits >> 8).double() / 2**24 >= rate


def drop(values, seed, rate):
    """Dropout of a tensor whose positions are counted from its start."""
    return values * is_kept(seed, values.shape, rate) / (1 - rate)


def assert_close(found, expected, tolerance=1e-5):
    """Compares by the largest error, relative to the largest value."""
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"off by {error}"
