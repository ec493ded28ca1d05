"""Dropout masks as a function of a seed and of the position of a value.

No mask is stored: the backward pass recomputes it. The position is hashed twice by a 32-bit mixing
function (Wellons, "Prospecting for hash functions", 2018), each time with one half of the seed.
This costs a fifth of Philox, which would take longer than the operations around dropout.
"""

import triton
import triton.language as tl


@triton.jit
def _mix_bits(x):
    x ^= x >> 16
    x = tl.mul(x, 0x7FEB352D, sanitize_overflow=False)
    x ^= x >> 15
    x = tl.mul(x, 0x846CA68B, sanitize_overflow=False)
    return x ^ (x >> 16)


@triton.jit
def is_kept(seed, counter, rate):
    """Whether dropout keeps a value, for a 64-bit seed and the value's 32-bit counter."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    bits = _mix_bits(_mix_bits(counter.to(tl.uint32) ^ low) ^ high)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= rate
