"""SimCLR of several processes does what that of one does; ``test_parallel.py`` runs them."""

import pytest
import torch

from fedaux_pl.engine.pretraining import SharedSimCLR
from fedaux_pl.models import create_model
from fedaux_pl.modules import SimCLR
from fedaux_pl.processes import Processes


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_make_their_parts_of_the_same_views(size):
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    model = create_model("resnet8", 2, width=0.125)

    def views(module):
        torch.manual_seed(3)
        return module._two_views([images])

    expected = views(SimCLR(model))
    parts = [views(SharedSimCLR(model, Processes(rank, size))) for rank in range(size)]
    halves = zip(*(part.chunk(2) if len(part) else (part, part) for part in parts), strict=True)
    for half, whole in zip(halves, expected.chunk(2), strict=True):
        torch.testing.assert_close(torch.cat(half), whole, rtol=0, atol=1e-6)
