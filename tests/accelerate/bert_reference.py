"""Sizes, dropout masks and comparisons for the checks of BERT's kernels."""

import torch

from fedaux_pl.accelerate.bert.pass_config import EncoderConfig, PassConfig


def pass_config(texts=3, length=7, width=24, heads=2, causal=False, dtype=torch.float16):
    settings = EncoderConfig(width=width, heads=heads, eps=1e-5, pad_id=0, padding_index=-1)
    return PassConfig(settings, texts, length, causal, dtype, ())


def seeds(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


def is_kept(seed, shape, rate):
    """The mask of ``kernels/dropout_mask.py``, on integers that do not overflow."""

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
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"off by {error}"
