"""Fingerprints of private data: they recognize it on this machine, and nobody else can use them."""

import hashlib
import multiprocessing
import re
import stat

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.callbacks import FederationReport
from fedaux_pl.data import Digits
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import (
    KEY_FILE,
    have_other_keys,
    keyed_fingerprint,
    machine_key,
    record_digests,
)
from fedaux_pl.errors import DataError
from tests.federations import FewDigits, create, fit, split
from tests.paper import paper_fedaux


@pytest.fixture
def other_machine(monkeypatch, tmp_path):
    """A state folder of its own, without a key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fedaux_pl"


def test_the_key_is_created_once_and_for_its_owner_only(other_machine):
    key = machine_key()
    path = other_machine / KEY_FILE
    assert machine_key() == key == path.read_bytes()
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    assert machine_key() != key


def _report_key(barrier, queue):
    barrier.wait()
    queue.put(machine_key())


def test_processes_that_start_together_have_one_key(other_machine):
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_report_key, args=(barrier, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    keys = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert keys == {machine_key()}


def test_without_a_place_for_the_key(monkeypatch, tmp_path):
    (tmp_path / "file").touch()  # a folder that even root cannot write to
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be recognized later; make the folder writable"):
        key = machine_key()
    assert machine_key() == key  # without another warning


@pytest.mark.parametrize("damage", ["short", "folder"])
def test_a_key_that_cannot_be_read(other_machine, damage):
    path = other_machine / KEY_FILE
    path.parent.mkdir(parents=True)
    if damage == "short":
        path.write_bytes(b"short")
    else:
        path.mkdir()
    with pytest.raises(DataError, match=rf"{path}, cannot be read \(.*\): restore it, or delete"):
        machine_key()


def test_record_digests_are_of_content_label_dtype_and_shape():
    x = torch.arange(24, dtype=torch.uint8).view(4, 1, 2, 3)
    y, key = torch.tensor([0, 1, 1, 0]), b"k"
    digests = record_digests(x, y, key)
    assert digests.shape == (4,)
    assert digests.dtype == np.uint64
    assert len(set(digests.tolist())) == 4
    assert np.array_equal(record_digests(x.flip(0), y.flip(0), key), digests[::-1])
    strided = x.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    assert np.array_equal(record_digests(strided, y, key), digests)
    others = [
        record_digests(x, None, key),
        record_digests(x, 1 - y, key),
        record_digests(x, y, b"another key"),
        record_digests(x.view(4, 1, 3, 2), y, key),
        record_digests(x.view(torch.int8), y, key),
    ]
    for other in others:
        assert not set(other.tolist()) & set(digests.tolist())
    changed = x.clone()
    changed[2, 0, 1, 1] += 1
    assert (record_digests(changed, y, key) != digests).tolist() == [False, False, True, False]
    assert record_digests(torch.rand(3, 2, dtype=torch.bfloat16), None, key).shape == (3,)
    assert record_digests(x[:0], y[:0], key).shape == (0,)


def test_fingerprints_of_another_key_cannot_be_compared():
    x = torch.arange(6)
    one, other = keyed_fingerprint(b"one", x), keyed_fingerprint(b"other", x)
    assert re.fullmatch(r"keyed:[0-9a-f]{8}:[0-9a-f]{64}", one)
    assert one != keyed_fingerprint(b"one", x + 1)
    assert one != keyed_fingerprint(b"one", x.view(2, 3))
    assert have_other_keys(one, other)
    assert not have_other_keys(one, keyed_fingerprint(b"one", x + 1))
    assert not have_other_keys(one, tensor_digest(x))
    assert not have_other_keys(one, None)


class OtherTest(FewDigits):
    """The same training data with other test data."""

    def test(self):
        return self._first(Digits("auxiliary").train(), 10)


def test_each_data_set_has_a_fingerprint_of_its_own():
    data = split()
    changed = {"test": split(private=OtherTest()), "private": split(private=FewDigits(train=63))}
    data.setup()
    contents = data.settings()["contents"]
    assert contents["auxiliary"] == tensor_digest(FewDigits().auxiliary())
    for name, other in changed.items():
        other.setup()
        others = other.settings()["contents"]
        assert [key for key in contents if contents[key] != others[key]] == [name]


def plain_digests(*tensors):
    """Hashes of tensors that anybody can compute."""
    content = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    hashes = [hashlib.new(name, content) for name in ("md5", "sha1", "sha256", "sha512", "blake2b")]
    return [tensor_digest(*tensors), *(digest.hexdigest() for digest in hashes)]


def test_no_file_of_a_run_confirms_a_guess_of_private_data(tmp_path, monkeypatch):
    data = split()
    callbacks = [FederationReport(), ModelCheckpoint(tmp_path / "ckpt", filename="last")]
    fit(tmp_path, create(paper_fedaux()), 1, data, callbacks=callbacks, enable_checkpointing=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files}
    assert {".json", ".ckpt", ".pt"} <= kinds  # the summary, the checkpoint and the cache
    published = b"".join(path.read_bytes() + path.name.encode() for path in files)

    train, test = FewDigits().train(), FewDigits().test()
    private = [(part.inputs, part.targets) for part in (train, test, *map(data.client, range(3)))]
    private += [(tensor,) for pair in private for tensor in pair]
    for tensors in private:
        for digest in plain_digests(*tensors):
            for shape in (digest.encode(), digest[:16].encode(), bytes.fromhex(digest)):
                assert shape not in published
    for client in range(3):
        own = data.client(client)
        for digest in record_digests(own.inputs, own.targets, machine_key()):
            assert digest.tobytes() not in published

    # whoever has the key recognizes the data; without it the true records confirm nothing
    key = machine_key()
    guess = keyed_fingerprint(key, train.inputs, train.targets)
    assert guess.encode() in published
    assert tensor_digest(FewDigits().auxiliary()).encode() in published  # which is public
    assert key not in published
    assert key.hex().encode() not in published
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "attacker"))
    candidates = train.inputs.repeat(3, 1, 1, 1).view(3, *train.inputs.shape)
    candidates[1, -1] ^= 1
    candidates[2, -1] ^= 2
    for inputs in candidates:  # the first one is true
        guess = keyed_fingerprint(machine_key(), inputs, train.targets)
        assert guess.encode() not in published
        assert guess.rpartition(":")[2].encode() not in published
