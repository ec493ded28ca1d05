"""What our kernels need from Triton's interpreter, beyond what it does by itself."""

import torch

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

import triton
import triton.language as tl


@triton.jit
def write_in_second_program(out, size):
    column = tl.arange(0, 8)
    is_written = (column < size) & (tl.program_id(0) == 1)
    tl.store(out + column, 1, mask=is_written)
    tl.store(out + column, 2, mask=~is_written)


def test_a_mask_with_a_condition_of_the_whole_program_consists_of_bools():
    """As integers, which Triton 3.6 still takes, Triton 3.9 would refuse it."""
    out = torch.zeros(8, dtype=torch.int32)
    write_in_second_program[(2,)](out, 5)
    assert out.tolist() == [1] * 5 + [2] * 3
