import torch

from fedaux_pl.engine import SeedPurpose, isolated_rng
from fedaux_pl.functional import derive_seed


def test_purposes_keep_their_values():
    """Other values would change the results of every run."""
    assert {purpose.name: int(purpose) for purpose in SeedPurpose} == {
        "CLIENT_TRAINING": 10,
        "RELEASE_NOISE": 11,
        "INITIALIZATION": 20,
        "CLIENT_SELECTION": 21,
        "DISTILLATION": 22,
        "ENSEMBLE": 23,
        "FINE_TUNING": 24,
        "PRETRAINING": 30,
    }
    assert derive_seed(3, SeedPurpose.DISTILLATION, 1) == derive_seed(3, 22, 1)


def test_a_block_has_its_own_random_numbers():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with isolated_rng(5):
        drawn = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))
