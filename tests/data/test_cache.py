"""A cache file is used only if it is undamaged and belongs to the key."""

import os
import stat
import threading
import time

import pytest
import torch

from fedaux_pl.data import cache
from fedaux_pl.data.cache import cached, fingerprint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import locked

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


@pytest.mark.parametrize(
    "key", [{**KEY, "size": 5}, {**KEY, "root": "/elsewhere"}, {"kind": "other", "size": 4}]
)
def test_builds_for_each_key(folder, build, key):
    cached(folder, KEY, build)
    assert cached(folder, key, build)["images"][0, 0] == 2
    assert cached(folder, KEY, build)["images"][0, 0] == 1


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def flip_a_pixel(file):
    content = bytearray(file.read_bytes())
    content[content.index(bytes(range(1, 250, 3)))] ^= 1  # the first row of images
    file.write_bytes(content)


def other_tensors(file):
    content = torch.load(file)
    content["tensors"]["images"] += 1
    torch.save(content, file)


def other_key(file):
    content = torch.load(file)
    content["key"] = "{}"
    torch.save(content, file)


def bare_tensor(file):
    torch.save(torch.zeros(3), file)


def words(file):
    file.write_text("these are words")


class Danger:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def code(file):
    torch.save({"format": 1, "key": Danger()}, file)


@pytest.mark.parametrize(
    "damage",
    [truncate, empty, flip_a_pixel, other_tensors, other_key, bare_tensor, words, code],
)
def test_damaged_file_is_rebuilt_with_a_warning(folder, build, damage):
    cached(folder, KEY, build)
    damage(only(folder))
    with pytest.warns(UserWarning, match=f"{folder}.* cannot be used .* is built again"):
        assert cached(folder, KEY, build)["images"][0, 0] == 2
    assert cached(folder, KEY, build)["images"][0, 0] == 2
    assert build.calls == 2


def test_user_folder_if_folder_is_not_writable(tmp_path, build, user_cache):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert cached(tmp_path / "file" / "cache", KEY, build)["images"][0, 0] == 1
    assert build.calls == 1
    assert only(user_cache).name.startswith("test-")


def test_warns_if_no_folder_is_writable(tmp_path, build, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.warns(UserWarning, match="cannot be locked, so another run may compute test"),
        pytest.warns(UserWarning, match="could not be cached"),
    ):
        assert cached(tmp_path / "file" / "cache", KEY, build)["images"][0, 0] == 1


def test_user_folder_without_xdg(tmp_path, build, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    cached(tmp_path / "file" / "cache", KEY, build)
    assert only(tmp_path / "home" / ".cache" / "fedaux_pl").suffix == ".pt"


def test_failed_write_leaves_no_files(folder, build, user_cache, monkeypatch):
    def half(content, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.warns(UserWarning, match="no space left"):
        cached(folder, KEY, build)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    assert list(user_cache.iterdir()) == []


def test_fingerprint(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("2")
    seen = [fingerprint([a, b]), fingerprint([b, a]), fingerprint([a])]
    assert fingerprint([a, b]) == seen[0]
    b.write_text("22")
    seen.append(fingerprint([a, b]))
    b.rename(tmp_path / "c")
    seen.append(fingerprint([a, tmp_path / "c"]))
    os.utime(a, ns=(1, 1))
    seen.append(fingerprint([a, tmp_path / "c"]))
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


def test_scratch_files_of_killed_processes_are_removed(folder, build):
    cached(folder, KEY, build)
    file = only(folder)
    file.rename(folder / f".{file.name}.0123456789abcdef.part")
    cached(folder, KEY, build)
    assert only(folder) == file


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


def test_a_replaced_file_is_read_again(tmp_path):
    """With the same size and modification time, in place or by another file."""
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("1")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    seen = [fingerprint([path])]
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    path.write_text("2")
    os.utime(path, ns=times)
    seen.append(fingerprint([path]))
    other.write_text("3")
    os.utime(other, ns=times)
    other.replace(path)
    seen.append(fingerprint([path]))
    assert len(set(seen)) == 3


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
    with pytest.warns(UserWarning, match="above the limit of .*FEDAUX_PL_CACHE_GB"):
        cached(user_cache, keys[1], build)


def test_nothing_is_cached_with_the_limit_0(user_cache, folder, build, monkeypatch):
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", "0")
    for _ in range(2):
        cached(user_cache, KEY, build)
    assert build.calls == 2
    assert not user_cache.exists()
    cached(folder, KEY, build)  # a folder of the user's choice
    assert only(folder).exists()
    monkeypatch.setenv("FEDAUX_PL_CACHE_GB", "many")
    with pytest.raises(ConfigurationError, match=r"limit of the cache in GB.* but is 'many'"):
        cached(user_cache, KEY, build)
