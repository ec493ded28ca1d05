"""Random rows for the tests of statistics."""

import torch


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(rows):
    return rows / rows.norm(dim=-1, keepdim=True)
