import errno
import resource
import threading
from contextlib import contextmanager

import pytest
import torch

import fedaux_pl.engine.checkpoints
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import keyed_fingerprint
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.engine.checkpoints import (
    FORMAT,
    check_resumable,
    check_undamaged,
    find_last,
    load_checkpoint,
)
from fedaux_pl.errors import ConfigurationError


def content(path):
    return torch.load(path, weights_only=True)


def test_it_writes_and_overwrites(tmp_path):
    path = tmp_path / "deep" / "er" / "last.ckpt"
    for round_ in (1, 2):
        AtomicCheckpointIO().save_checkpoint({"round": round_, "x": torch.ones(3)}, path)
        assert content(path)["round"] == round_
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    assert AtomicCheckpointIO().load_checkpoint(path)["round"] == 2


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, error):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"round": 1}, path)

    def half(checkpoint, file):
        file.write(b"the first half of it")
        file.flush()
        raise error

    monkeypatch.setattr(fedaux_pl.engine.checkpoints.torch, "save", half)
    with pytest.raises(type(error)):
        AtomicCheckpointIO().save_checkpoint({"round": 2}, path)
    monkeypatch.undo()
    assert content(path) == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.fixture
def slow_writes(monkeypatch):
    """Holds back every write until the event is set."""
    go, save = threading.Event(), torch.save

    def slow(checkpoint, file):
        assert go.wait(60)
        save(checkpoint, file)

    monkeypatch.setattr(fedaux_pl.engine.checkpoints.torch, "save", slow)
    return go


def test_the_next_round_does_not_wait_for_a_write(tmp_path, slow_writes):
    """What is written is what it was, however the weights change meanwhile."""
    checkpoints, path = AtomicCheckpointIO(background="last.ckpt"), tmp_path / "last.ckpt"
    weights = torch.zeros(3)
    checkpoints.save_checkpoint({"x": [weights]}, path)
    weights += 1
    assert not path.exists()
    slow_writes.set()
    checkpoints.save_checkpoint({"x": [weights]}, tmp_path / "best.ckpt")  # after the other
    assert content(path)["x"][0].tolist() == [0, 0, 0]
    assert content(tmp_path / "best.ckpt")["x"][0].tolist() == [1, 1, 1]


def test_only_the_named_file_is_written_in_the_background(tmp_path):
    checkpoints = AtomicCheckpointIO(background="last.ckpt")
    checkpoints.save_checkpoint({"round": 1}, tmp_path / "hpc_ckpt_1.ckpt")
    assert content(tmp_path / "hpc_ckpt_1.ckpt") == {"round": 1}


@pytest.mark.parametrize("end", ["finish", "teardown", "load_checkpoint", "save_checkpoint"])
def test_a_failed_write_in_the_background_is_reported(tmp_path, monkeypatch, end):
    checkpoints, path = AtomicCheckpointIO(background="last.ckpt"), tmp_path / "last.ckpt"

    def fail(checkpoint, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fedaux_pl.engine.checkpoints.torch, "save", fail)
    checkpoints.save_checkpoint({"round": 1}, path)
    arguments = {"load_checkpoint": [path], "save_checkpoint": [{}, tmp_path / "other.ckpt"]}
    with pytest.raises(OSError, match=r"last\.ckpt could not be written \(No space left"):
        getattr(checkpoints, end)(*arguments.get(end, []))
    checkpoints.finish()  # reported once


def checkpoint(**changed):
    """The content of a small checkpoint, with other entries of the federation."""
    names = ("metrics", "h0", "site_sizes", "releases", "teachers", "client_states")
    federation = {
        "format": FORMAT,
        "settings": {"clients": {}, "model_options": {}, "threads": 1},
        **{name: {} for name in names},
        **{name: [] for name in ("history", "classes", "input_shape")},
    }
    return {"federation": federation | changed, "state_dict": {}, "hyper_parameters": {}}


def settings(key, private=0, auxiliary=0):
    contents = {
        "private": keyed_fingerprint(key, torch.tensor([private])),
        "test": keyed_fingerprint(key, torch.tensor([2])),
        "auxiliary": tensor_digest(torch.tensor([auxiliary])),
    }
    return {"data": {"alpha": 1.0, "contents": contents}}


def test_private_data_of_the_same_machine_are_compared():
    saved = settings(b"key")
    check_resumable(saved, settings(b"key"))
    with pytest.raises(ConfigurationError, match=r"made with data\.contents\.private = 'keyed:"):
        check_resumable(saved, settings(b"key", private=1))


def test_private_data_of_another_machine_cannot_be_compared():
    saved = settings(b"key")
    with pytest.warns(UserWarning, match="another machine.* cannot be checked") as caught:
        check_resumable(saved, settings(b"other", private=1))
    assert len(caught) == 1
    with pytest.raises(ConfigurationError, match=r"made with data\.contents\.auxiliary"):
        check_resumable(saved, settings(b"other", auxiliary=1))


@contextmanager
def small_disk():
    """The system refuses to write files of more than 50 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def failing(error):
    def fail(checkpoint, file):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedaux_pl.engine.checkpoints.torch, "save", fail)
        yield


FULL = {
    "a limit of the system": (small_disk(), "File too large"),
    "OSError": (
        failing(OSError(errno.ENOSPC, "No space left on device")),
        "No space left on device",
    ),
    "torch's error": (
        failing(RuntimeError("[enforce fail] PytorchStreamWriter failed: file write\nC++ stack")),
        r"\[enforce fail\] PytorchStreamWriter failed: file write",
    ),
}


@pytest.mark.parametrize("kind", FULL)
def test_a_full_disk_is_one_line_that_names_the_last_checkpoint(tmp_path, kind):
    path = tmp_path / "last.ckpt"
    full, reason = FULL[kind]
    AtomicCheckpointIO().save_checkpoint(checkpoint(history=[{}, {}, {}]), path)
    message = (
        f"^the checkpoint {path} could not be written \\({reason}\\); the last complete one, after "
        f"round 3, is still there: make room in trainer.default_root_dir and resume with "
        f"--ckpt_path {path}$"
    )
    with full, pytest.raises(OSError, match=message):
        AtomicCheckpointIO().save_checkpoint({"x": torch.ones(100_000)}, path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert len(load_checkpoint(path)["federation"]["history"]) == 3


def test_a_full_disk_before_the_first_checkpoint(tmp_path):
    with small_disk(), pytest.raises(OSError, match=r"too large\); .* in trainer.default_root_dir"):
        AtomicCheckpointIO().save_checkpoint({"x": torch.ones(100_000)}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "it is not a file that torch.save wrote"),
        ("", "it is not a file that torch.save wrote"),
        ("PK\x03\x04 the beginning of a zip file", "it is damaged or incomplete"),
    ],
)
def test_a_foreign_file_has_a_clear_message(tmp_path, text, reason):
    path = tmp_path / "text.ckpt"
    path.write_text(text)
    says = rf"text.ckpt cannot be read as a checkpoint \({reason}\): give another checkpoint"
    for load in (load_checkpoint, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(ConfigurationError, match=says):
            load(path)


def test_a_flipped_bit_that_torch_reads_as_zeros(tmp_path):
    """The mark of a folder in the table of contents: torch then does not read the entry."""
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"federation": {}, "x": torch.arange(1000)}, path)
    content = bytearray(path.read_bytes())
    name = content.rindex(b"/data/0")  # in the table of contents, at the end
    start = content.rindex(b"PK\x01\x02", 0, name)
    content[start + 38] ^= 0x10  # the external attributes
    path.write_bytes(content)
    for load in (load_checkpoint, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(ConfigurationError, match=r"it is damaged: the checksum of .*/data/0"):
            load(path)


@pytest.mark.parametrize("value", [None, 3, "text", True, [], [[]], {"a": None}])
def test_malformed_entries_are_one_line(tmp_path, value):
    """Each entry that is read, of another type or missing."""
    path = tmp_path / "last.ckpt"
    whole = checkpoint()
    entries = [("state_dict",), ("hyper_parameters",), ("federation",)]
    entries += [("federation", name) for name in whole["federation"]]
    entries += [("federation", "settings", name) for name in whole["federation"]["settings"]]
    for *places, name in entries:
        changed = checkpoint()
        holder = changed
        for place in places:
            holder = holder[place]
        if type(holder[name]) is type(value) or (value is True and type(holder[name]) is int):
            continue
        holder[name] = value
        AtomicCheckpointIO().save_checkpoint(changed, path)
        message = rf"last\.ckpt: .*{name}: got .*; expected a|^the checkpoint .* format"
        with pytest.raises(ConfigurationError, match=message) as refusal:
            load_checkpoint(path)
        assert "\n" not in str(refusal.value)
        del holder[name]
        AtomicCheckpointIO().save_checkpoint(changed, path)
        with pytest.raises(ConfigurationError, match=f"{name}: got nothing|format 1|is not the ch"):
            load_checkpoint(path)


def test_a_checkpoint_holds_tensors_and_plain_values_alone(tmp_path):
    """A bytearray takes gigabytes in a file of a kilobyte."""
    path = tmp_path / "last.ckpt"
    torch.save({"federation": {}, "more": bytearray(10)}, path)
    message = r"cannot be read as a checkpoint \(it holds 'builtins\.bytearray', but only tensors"
    for load in (load_checkpoint, AtomicCheckpointIO().load_checkpoint, check_undamaged):
        with pytest.raises(ConfigurationError, match=message):
            load(path)
    assert AtomicCheckpointIO().load_checkpoint(path, weights_only=False)["more"] == bytearray(10)


def test_the_newest_checkpoint_is_not_that_of_a_benchmark(tmp_path):
    assert find_last(tmp_path) is None
    for folder in ("runs/version_0", "runs/version_1", "benchmark/.run-x/runs/version_0"):
        path = tmp_path / folder / "checkpoints" / "last.ckpt"
        AtomicCheckpointIO().save_checkpoint({}, path)
    assert find_last(tmp_path) == tmp_path / "runs/version_1/checkpoints/last.ckpt"
