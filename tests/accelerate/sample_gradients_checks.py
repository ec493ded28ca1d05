"""The kernel for sums of gradients in Triton's interpreter."""

import pytest
import torch

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution import sample_gradients
from fedaux_pl.modules import PrivateClientModule


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [5, 64, 100])
def test_sums_leave_out_rows_of_scale_zero(dtype, width, monkeypatch):
    monkeypatch.setattr(sample_gradients, "BLOCK", 32)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, width, generator=generator).to(dtype)
    scales = torch.rand(7, generator=generator)
    rows[2] = torch.nan
    scales[2] = 0
    client = PrivateClientModule("resnet8", 10, model_options={"width": 0.125})
    expected = client.weighted_sum(rows, scales)
    torch.testing.assert_close(sample_gradients.sum_rows(rows, scales), expected)
