"""Locks, atomic writes and the state folder."""

import csv
import io
import multiprocessing
import os
from pathlib import Path

import pytest

from fedaux_pl import files
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import (
    NameTakenError,
    create_secret,
    csv_text,
    is_user_cache,
    locked,
    state_folder,
    user_cache,
    write_atomically,
    write_text_atomically,
)


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path):
    path = tmp_path / "last.ckpt"
    write_atomically(path, lambda file: file.write(b"old"))

    def fail(file):
        file.write(b"ne")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_the_scratch_of_a_killed_writer_is_removed(tmp_path):
    (tmp_path / ".last.ckpt.0123.part").write_bytes(b"half")
    (tmp_path / ".other.ckpt.0123.part").write_bytes(b"another writer's")
    write_atomically(tmp_path / "last.ckpt", lambda file: file.write(b"new"))
    assert sorted(os.listdir(tmp_path)) == [".other.ckpt.0123.part", "last.ckpt"]


def _increment(folder):
    for _ in range(50):
        with locked(folder / "lock"):
            content = str(int((folder / "count").read_text()) + 1).encode()
            write_atomically(folder / "count", lambda file, new=content: file.write(new))


def test_a_lock_excludes_other_processes(tmp_path):
    (tmp_path / "count").write_text("0")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_increment, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "count").read_text() == "100"


def test_waiting_for_a_lock_is_reported_once(tmp_path):
    waited = []
    with locked(tmp_path / "lock", on_wait=lambda: waited.append(1)):
        assert not waited
        child = os.fork()
        if not child:  # the lock is held by the parent: waits until it is released
            with locked(tmp_path / "lock", on_wait=(tmp_path / "waiting").touch):
                os._exit(0)
        while not (tmp_path / "waiting").exists():
            pass
    assert os.waitpid(child, 0)[1] == 0


def test_the_state_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "fedaux_pl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "fedaux_pl"


def test_a_relative_folder_is_ignored(tmp_path, monkeypatch):
    """As the XDG specification asks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "own")
    assert state_folder() == tmp_path / "home" / ".local" / "state" / "fedaux_pl"
    assert user_cache() == tmp_path / "home" / ".cache" / "fedaux_pl"


@pytest.mark.parametrize("given", ["own", ".", "../state"])
def test_the_ledger_of_an_earlier_version_in_a_relative_folder_is_not_forgotten(
    given, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_STATE_HOME", given)
    earlier = Path(given, "fedaux_pl").absolute()
    earlier.mkdir(parents=True)
    assert state_folder().is_absolute()  # there is no ledger
    (earlier / "fingerprint.key").touch()
    with pytest.raises(ConfigurationError, match=f"set XDG_STATE_HOME to {earlier.parent}"):
        state_folder()


def test_a_user_without_a_home_needs_absolute_folders(tmp_path, monkeypatch):
    """As in a container with the uid of somebody else."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for folder, name in ((state_folder, "XDG_STATE_HOME"), (user_cache, "XDG_CACHE_HOME")):
        message = f"no home folder: set HOME, or {name} to an absolute path"
        with pytest.raises(ConfigurationError, match=message):
            folder()
    assert not is_user_cache(tmp_path)
    write_text_atomically(tmp_path / "log" / "a.csv", "1")  # other files need no home
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "fedaux_pl"


def test_one_of_two_exclusive_writers_wins(tmp_path):
    path = tmp_path / "1.pt"

    def write(file):
        write_atomically(path, lambda other: other.write(b"first"), exclusive=True)
        assert os.listdir(tmp_path) == ["1.pt"]  # also the scratch file of the second
        file.write(b"second")

    with pytest.raises(NameTakenError):
        write_atomically(path, write, exclusive=True)
    assert path.read_bytes() == b"first"
    with pytest.raises(NameTakenError):
        write_atomically(path, lambda file: file.write(b"third"), exclusive=True)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["1.pt"]


def test_a_secret_is_created_once_where_locks_exclude_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: None)
    path = tmp_path / "fingerprint.key"
    random = files.secrets.token_bytes

    def interrupted(count):
        monkeypatch.setattr(files.secrets, "token_bytes", random)
        create_secret(path, 32)  # by another process
        return bytes(count)

    monkeypatch.setattr(files.secrets, "token_bytes", interrupted)
    create_secret(path, 32)
    assert path.read_bytes() != bytes(32)


def test_a_name_with_brackets_is_not_a_pattern(tmp_path):
    (tmp_path / ".a1.csv.0123.part").write_bytes(b"another writer's")
    write_text_atomically(tmp_path / "a[1].csv", "ü\r\n")
    assert (tmp_path / "a[1].csv").read_bytes() == "ü\r\n".encode()
    assert sorted(os.listdir(tmp_path)) == [".a1.csv.0123.part", "a[1].csv"]


def test_who_waits_for_a_lock_is_asked_again_and_may_give_up(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_REMINDER", 0.01)
    calls = []

    def give_up():
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError

    with locked(tmp_path / "lock"):
        with pytest.raises(TimeoutError), locked(tmp_path / "lock", give_up):
            pass
        with pytest.raises(BlockingIOError), locked(tmp_path / "lock", pytest.fail, patience=0):
            pass
    with locked(tmp_path / "lock", pytest.fail, patience=0):  # free again
        pass


def test_cells_that_a_spreadsheet_would_run_are_text_and_numbers_stay():
    formulas = [
        "=1+1",
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1",
        Path("=a.png"),
    ]
    rows = list(csv.reader(io.StringIO(csv_text([formulas], "\r\n"), newline="")))
    assert rows == [[f"'{cell}" for cell in formulas]]
    kept = [-0.5, "-0.5", "+1e-3", -2, float("-inf"), "-", "a=1", "(mean)", "", None]
    assert csv_text([kept]) == "-0.5,-0.5,+1e-3,-2,-inf,-,a=1,(mean),,\n"
