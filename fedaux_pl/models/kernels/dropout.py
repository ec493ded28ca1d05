"""Which values dropout keeps, as a function of a seed and of where a value is.

Nothing is stored: the pass backward asks again. A counter goes twice through a mixing function of
32 bits (Wellons, "Prospecting for hash functions", 2018), each time with one half of the seed. That
is a fifth of the work of Philox, which would take longer than what dropout is a part of.
"""

import triton
import triton.language as tl


@triton.jit
def _mixed(x):
    x ^= x >> 16
    x = tl.mul(x, 0x7FEB352D, sanitize_overflow=False)
    x ^= x >> 15
    x = tl.mul(x, 0x846CA68B, sanitize_overflow=False)
    return x ^ (x >> 16)


@triton.jit
def kept(seed, counter, rate):
    """Whether a value is kept, for counters of 32 bits and a seed of 64."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    mixed = _mixed(_mixed(counter.to(tl.uint32) ^ low) ^ high)
    return (mixed >> 8).to(tl.float32) * (1.0 / 16777216.0) >= rate
