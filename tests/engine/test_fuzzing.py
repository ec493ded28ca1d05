"""Mutated checkpoints and cache files: refused clearly, or loaded with the original contents."""

import os
import pickle
import warnings
from collections import Counter

import pytest
import torch

from fedaux_pl.data.cache import cached
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from tests.engine.test_checkpoints import checkpoint
from tests.fuzzing import mutate

COUNT = int(os.environ.get("FEDAUX_MUTATIONS", "100"))
KEY = {"kind": "fuzzed"}


def tensors():
    return {f"layer{i}": torch.arange(40.0) * i for i in range(6)} | {"ids": torch.arange(300)}


def is_same(one, other):
    """Equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def report(kind, outcomes):
    print(f"{kind}: " + ", ".join(f"{count} {what}" for what, count in outcomes.most_common()))
    assert outcomes.total() == COUNT
    assert outcomes["refused"] > COUNT / 2  # the mutations do damage


def test_mutated_checkpoints(tmp_path):
    path = tmp_path / "last.ckpt"
    original = checkpoint(history=[{"accuracy": 0.5}] * 3) | {"state_dict": tensors()}
    AtomicCheckpointIO().save_checkpoint(original, path)
    content, outcomes = path.read_bytes(), Counter()
    for seed in range(COUNT):
        path.write_bytes(mutate(content, seed))
        try:
            loaded = [load_checkpoint(path), AtomicCheckpointIO().load_checkpoint(path)]
        except ConfigurationError:
            outcomes["refused"] += 1
        else:
            assert all(is_same(one, original) for one in loaded), seed
            outcomes["loaded"] += 1
    report("checkpoints", outcomes)


def test_mutated_cache_files(tmp_path):
    original, rebuilt = tensors(), {"x": torch.ones(3)}
    cached(tmp_path, KEY, lambda: original)
    (path,) = tmp_path.glob("*.pt")
    content, outcomes = path.read_bytes(), Counter()
    for seed in range(COUNT):
        path.write_bytes(mutate(content, seed))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded = cached(tmp_path, KEY, lambda: rebuilt)
        if is_same(loaded, original):
            assert not told
            outcomes["loaded"] += 1
        else:
            assert loaded is not original
            assert is_same(loaded, rebuilt)
            assert "cannot be used" in str(told[0].message)
            outcomes["refused"] += 1
    report("cache files", outcomes)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def bare_pickle(value, path):
    path.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("save", [torch.save, bare_pickle])
def test_a_payload_is_not_executed(tmp_path, save):
    payload = {"federation": Payload(tmp_path / "executed"), "format": 1}
    save(payload, tmp_path / "last.ckpt")
    for load in (load_checkpoint, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(ConfigurationError, match="cannot be read as a checkpoint"):
            load(tmp_path / "last.ckpt")
    cached(tmp_path, KEY, tensors)
    (path,) = tmp_path.glob("*.pt")
    save(payload, path)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert is_same(cached(tmp_path, KEY, tensors), tensors())
    assert not (tmp_path / "executed").exists()
