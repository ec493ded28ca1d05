"""A cache file is used only if it is undamaged and belongs to the key."""

import io
import os
import stat
import threading
import time

import pytest
import torch

from fedaux_pl.data import cache
from fedaux_pl.data.cache import cached, fingerprint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import locked, write_atomically

KEY = {"kind": "test", "size": 4}


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "fedaux_pl"


class Builder:
    """Builds different tensors each time, and counts."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        images = torch.arange(3000, dtype=torch.uint8).reshape(1000, 3).T + self.calls
        return {"images": images, "labels": torch.arange(3)}


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def only(folder):
    (file,) = (path for path in folder.iterdir() if path.suffix != ".lock")
    return file


def test_builds_once(folder, build, user_cache):
    first = cached(folder, KEY, build)
    second = cached(folder, dict(reversed(KEY.items())), build)
    assert build.calls == 1
    assert first.keys() == second.keys() == {"images", "labels"}
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert only(folder).name.startswith("test-")
    assert not user_cache.exists()
    assert stat.S_IMODE(only(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_builds_for_each_key(folder, build):
    cached(folder, KEY, build)
    others = [{**KEY, "size": 5}, {**KEY, "root": "/elsewhere"}, {"kind": "other", "size": 4}]
    for count, key in enumerate(others, 2):
        assert cached(folder, key, build)["images"][0, 0] == count
    assert cached(folder, KEY, build)["images"][0, 0] == 1


class Danger:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def change(content, name, value):
    file = io.BytesIO()
    torch.save({**torch.load(io.BytesIO(content)), name: value}, file)
    return file.getvalue()


def saved(value):
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


FIRST_ROW = bytes(range(1, 250, 3))
DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "a changed pixel": lambda content: content.replace(FIRST_ROW, b"\0" + FIRST_ROW[1:]),
    "other tensors": lambda content: change(content, "tensors", {"images": torch.zeros(3)}),
    "another key": lambda content: change(content, "key", "{}"),
    "a bare tensor": lambda content: saved(torch.zeros(3)),
    "words": lambda content: b"these are words",
    "code": lambda content: saved({"format": 1, "key": Danger()}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_rebuilt_with_a_warning(folder, build, damage):
    cached(folder, KEY, build)
    file = only(folder)
    content = file.read_bytes()
    file.write_bytes(damage(content))
    assert file.read_bytes() != content
    with pytest.warns(UserWarning, match=f"{folder}.* cannot be used .* is built again"):
        assert cached(folder, KEY, build)["images"][0, 0] == 2
    assert cached(folder, KEY, build)["images"][0, 0] == 2
    assert build.calls == 2


def test_warns_if_the_folder_is_not_writable(tmp_path, build):
    (tmp_path / "file").touch()
    with (
        pytest.warns(UserWarning, match="cannot be locked, so another run may compute test"),
        pytest.warns(UserWarning, match="could not be cached in .*/file/cache and is built again"),
    ):
        assert cached(tmp_path / "file" / "cache", KEY, build)["images"][0, 0] == 1


def test_failed_write_leaves_no_files(folder, build, monkeypatch):
    def half(content, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.warns(UserWarning, match="no space left"):
        cached(folder, KEY, build)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


def test_fingerprint(tmp_path):
    """Also of a file that is replaced by one of the same size and modification time."""
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    a.write_text("1")
    b.write_text("2")
    times = a.stat().st_atime_ns, a.stat().st_mtime_ns
    seen = [fingerprint([a, b]), fingerprint([b, a]), fingerprint([a])]
    assert fingerprint([a, b]) == seen[0]
    b.write_text("22")
    seen.append(fingerprint([a, b]))
    b.rename(c)
    seen.append(fingerprint([a, c]))
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    a.write_text("2")
    os.utime(a, ns=times)
    seen.append(fingerprint([a, c]))
    b.write_text("3")
    os.utime(b, ns=times)
    b.replace(a)
    seen.append(fingerprint([a, c]))
    assert len(set(seen)) == len(seen)


def test_two_runs_build_once(folder, build, monkeypatch):
    """The second waits, says so, and finds what the first has built."""
    started, waited, said, results = threading.Event(), threading.Event(), [], []

    def say(text):  # not capsys, whose buffer must not be read while another thread prints
        said.append(text)
        waited.set()

    def slow_build():
        started.set()
        waited.wait(60)
        return build()

    monkeypatch.setattr(cache, "print", say, raising=False)
    threads = [threading.Thread(target=lambda: results.append(cached(folder, KEY, slow_build)))]
    threads[0].start()
    started.wait(60)
    threads.append(threading.Thread(target=lambda: results.append(cached(folder, KEY, build))))
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert build.calls == 1
    assert torch.equal(results[0]["images"], results[1]["images"])
    assert "waiting for another run" in said[0]


def test_readers_do_not_wait(folder, build):
    """A complete file is read while another process holds the lock."""
    cached(folder, KEY, build)
    with locked(folder / f".{only(folder).name}.lock"):
        assert cached(folder, KEY, build)["images"][0, 0] == 1


def test_the_users_cache_is_closed_to_other_users(user_cache, build):
    """Also one that an earlier version has created."""
    user_cache.mkdir(parents=True, mode=0o755)
    cached(user_cache, {**KEY, "root": "/home/ada/patients"}, build)
    assert stat.S_IMODE(user_cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(only(user_cache).stat().st_mode) == 0o600
    assert b"patients" not in only(user_cache).read_bytes()


def test_only_this_machine_knows_the_identity_of_a_file(folder, build, tmp_path, monkeypatch):
    cached(folder, KEY, build)
    before = fingerprint([tmp_path]), only(folder).name
    only(folder).unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / f"{tmp_path.name} other machine"))
    cached(folder, KEY, build)
    assert fingerprint([tmp_path]) != before[0]
    assert only(folder).name != before[1]


def test_the_least_recently_used_files_are_removed(user_cache, build, monkeypatch):
    keys = [{**KEY, "size": size} for size in range(4)]
    for number, key in enumerate(keys[:3]):
        cached(user_cache, key, build)
        newest = max(user_cache.glob("*.pt"), key=lambda path: path.stat().st_ctime_ns)
        os.utime(newest, ns=(number, number))
    cached(user_cache, keys[0], build)  # used now
    size = newest.stat().st_size
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", str(2.5 * size / 1e9))
    cached(user_cache, keys[3], build)
    assert len(list(user_cache.glob("*.pt"))) == 2
    build.calls = 0
    for key in (keys[0], keys[3]):
        cached(user_cache, key, build)
    assert build.calls == 0
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", "1e-6")
    with pytest.warns(UserWarning, match="above the limit, FEDAUX_PL_CACHE_GB"):
        cached(user_cache, keys[1], build)


def test_another_process_may_remove_a_file_that_was_just_written(user_cache, build, monkeypatch):
    def write_and_lose(path, write, private):
        write_atomically(path, write, private)
        path.unlink()

    monkeypatch.setattr(cache, "write_atomically", write_and_lose)
    cached(user_cache, KEY, build)
    cached(user_cache, KEY, build)
    assert build.calls == 2


def test_nothing_is_cached_with_the_limit_0(user_cache, folder, build, monkeypatch):
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", "0")
    for _ in range(2):
        cached(user_cache, KEY, build)
    assert build.calls == 2
    assert not user_cache.exists()
    cached(folder, KEY, build)  # a folder of the user's choice
    assert only(folder).exists()
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", "many")
    with pytest.raises(ConfigurationError, match=r"got .many.; expected the limit"):
        cached(user_cache, KEY, build)


@pytest.fixture
def elsewhere(tmp_path):
    """A cache folder that this user cannot enter."""
    folder = tmp_path / "theirs" / "fedaux_pl"
    folder.mkdir(parents=True)
    is_root = os.getuid() == 0  # who can enter every folder
    (tmp_path / "theirs").chmod(0o700 if is_root else 0o000)
    if is_root:
        os.seteuid(65534)
    yield folder
    os.seteuid(os.getuid())
    (tmp_path / "theirs").chmod(0o700)


@pytest.mark.filterwarnings("ignore:the key of this machine's fingerprints")
def test_a_cache_of_another_user_is_not_used(elsewhere, build, monkeypatch):
    """The run goes on, and says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere.parent))
    assert not cache.has_cached(elsewhere, KEY)
    assert cache.load_cached(elsewhere, KEY) is None
    with pytest.warns(UserWarning, match="cache") as caught:
        tensors = cached(elsewhere, KEY, build)
    assert tensors
    messages = [str(warning.message) for warning in caught]
    assert any("the data could not be cached" in message for message in messages)
    assert all(len(message.splitlines()) == 1 for message in messages)
