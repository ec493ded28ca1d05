"""One transaction of the ledger: found, refused or added."""

import shutil

import numpy as np
import pytest
import torch

from fedaux_pl.errors import PrivacyError
from fedaux_pl.scoring import Privacy, Release
from fedaux_pl.sites.budget import ALONE, Budget
from fedaux_pl.sites.ledger import Entry, Ledger
from fedaux_pl.sites.ledger_keys import ReleaseKey

DIGESTS = {0: np.array([1, 2, 3], dtype=np.uint64)}
COST = Privacy(epsilon=1.0).cost(1.0)
KEY = ReleaseKey("models ", "digest 1.0", " settings data")


def of(value):
    return {"weight": torch.tensor([value])}, {0: COST}


@pytest.fixture
def budget(tmp_path):
    return Budget(Ledger("key", tmp_path), DIGESTS, 1e-5, {"epsilon_limit": 1.0})


def test_a_release_is_computed_once(budget):
    tensors, total = budget.release_once(KEY, lambda: of(1.0), COST)
    again, _ = budget.release_once(KEY, lambda: pytest.fail("computed again"), COST)
    assert torch.equal(tensors["weight"], again["weight"])
    assert (total.releases, len(budget.entries())) == (1, 1)
    assert total.epsilon == pytest.approx(1.0)


def test_what_costs_too_much_is_refused_before_it_is_computed(budget):
    budget.release_once(KEY, lambda: of(1.0), COST)
    other = ReleaseKey("other ")
    left = (
        "above the epsilon_limit 1, of which epsilon 0 is left: the ledger has 1 earlier release "
    )
    with pytest.raises(PrivacyError, match=left):
        budget.release_once(other, lambda: pytest.fail("computed"), COST)
    with pytest.raises(PrivacyError, match="above the epsilon_limit 1"):
        budget.check(other, COST)
    budget.limits = {"epsilon_limit": 9.0, ALONE: 1.2}
    with pytest.raises(PrivacyError, match="by the noise of this site alone, above the epsilon_l"):
        budget.check(other, COST)
    budget.limits = {"epsilon_limit": 9.0}
    with pytest.raises(PrivacyError, match="does not have the first one"):
        budget.check(ReleaseKey("other ", earlier=other), COST)
    budget.check(ReleaseKey("other ", earlier=KEY), COST)
    assert len(budget.entries()) == 1


def test_other_tensors_of_the_server_need_an_explicit_yes(budget):
    budget.limits = {"epsilon_limit": 9.0}
    budget.release_once(KEY, lambda: of(1.0), COST)
    other = ReleaseKey(KEY.start, "other 1.0", KEY.end)
    with pytest.raises(PrivacyError, match=r"a second release: .* which costs epsilon 1 again"):
        budget.check(other, COST)
    budget.check(KEY, COST)
    budget.allow_new_h0 = True
    budget.check(other, COST)


def test_the_limits_hold_again_before_an_entry_is_written(budget):
    def release():
        budget.release_once(ReleaseKey("another run"), lambda: of(1.0), COST)
        return of(2.0)

    with pytest.raises(PrivacyError, match="above the epsilon_limit"):
        budget.release_once(KEY, release, COST)
    assert [entry.key for entry in budget.entries()] == ["another run"]


def test_the_release_that_another_run_has_added_meanwhile_is_used(budget):
    def release():
        budget.release_once(KEY, lambda: of(1.0), COST)
        return of(2.0)

    tensors, total = budget.release_once(KEY, release, COST)
    assert tensors["weight"] == 1.0
    assert (total.releases, len(budget.entries())) == (1, 1)


@pytest.fixture
def without_locks(monkeypatch):
    """A file system on which ``flock`` excludes nobody, as some network file systems."""
    monkeypatch.setattr("fedaux_pl.files.fcntl.flock", lambda *_: None)


def add_while_another_writes(budget, monkeypatch, other):
    """Let another process add ``other`` just before this one adds its entry."""
    add = Ledger.add
    pending = [other]

    def interrupted(ledger, entry, number):
        if pending:
            budget.release_once(pending.pop(), lambda: of(1.0), COST)
        add(ledger, entry, number)

    monkeypatch.setattr(Ledger, "add", interrupted)


def test_two_entries_at_the_same_time_are_both_kept(budget, without_locks, monkeypatch):
    budget.limits = {"epsilon_limit": 9.0}
    add_while_another_writes(budget, monkeypatch, ReleaseKey("another run"))
    _, total = budget.release_once(KEY, lambda: of(2.0), COST)
    assert [entry.key for entry in budget.entries()] == ["another run", str(KEY)]
    assert total.releases == 2


def test_two_entries_at_the_same_time_share_the_limit(budget, without_locks, monkeypatch):
    add_while_another_writes(budget, monkeypatch, ReleaseKey("another run"))
    with pytest.raises(PrivacyError, match="above the epsilon_limit"):
        budget.release_once(KEY, lambda: of(2.0), COST)
    assert [entry.key for entry in budget.entries()] == ["another run"]


def test_the_same_release_at_the_same_time_is_made_once(budget, without_locks, monkeypatch):
    add_while_another_writes(budget, monkeypatch, KEY)
    tensors, total = budget.release_once(KEY, lambda: of(2.0), COST)
    assert (float(tensors["weight"]), total.releases) == (1.0, 1)


def test_a_budget_is_not_forgotten_with_its_folder(budget):
    """A site that runs on would otherwise release a second vector, as if it were the first."""
    budget.release_once(KEY, lambda: of(1.0), COST)
    shutil.rmtree(budget.ledger.folder)
    with pytest.raises(PrivacyError, match=r"000001\.pt is missing\), so nothing is released"):
        budget.release_once(ReleaseKey("other"), lambda: pytest.fail("computed"), COST)
    with pytest.raises(PrivacyError, match=r"000001\.pt is missing"):
        budget.release_once(KEY, lambda: pytest.fail("computed"), COST)


def test_a_rehearsal_has_no_entries_and_no_limits():
    budget = Budget(None, {}, 1e-5, {"epsilon_limit": 1e-3})
    for value in (1.0, 2.0):
        budget.check(KEY, COST)
        tensors, total = budget.release_once(KEY, lambda value=value: of(value), COST)
        assert (float(tensors["weight"]), total) == (value, None)
    assert budget.entries() == []


def test_what_is_left_beside_an_update_of_version_1_0(budget):
    """Its epsilon is added, so no more than the rest of the limit may be promised."""
    update = Release(0.6, 1e-5, 1.0, 0.5, "sampled", what="a model update", steps=10, rate=0.2)
    budget.ledger.add(Entry("update", {}, {0: update}, budget.digests))
    half = Privacy(0.5, 1e-5).cost(1.0)
    with pytest.raises(PrivacyError, match=r"epsilon 1\.1, .* of which epsilon 0\.3996 is left"):
        budget.check(KEY, half)
    budget.check(KEY, Privacy(0.39, 1e-5).cost(1.0))
