"""Downloads of small archives in the real formats, from a host on loopback with faults."""

import os
import socket
from collections import namedtuple

import pytest
import torch

from fedaux_pl.data import CIFAR10, STL10, SVHN, Digits, FederatedDataModule, ImageNetSubset
from fedaux_pl.data import downloads as downloads_module
from fedaux_pl.errors import DataError, DataNotFoundError
from tests.archives import CIFAR, STL, publish_archives, served


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(downloads_module, "_BLOCK", 1000)


@pytest.fixture
def host(tmp_path, monkeypatch):
    folder = tmp_path / "published"
    folder.mkdir()
    publish_archives(monkeypatch, folder)
    with served(folder) as host:
        yield host


@pytest.fixture
def root(tmp_path):
    return tmp_path / "new" / "data"


def cifar10(root, host, download=True):
    return CIFAR10(root, download=download, mirror=host.url)


def stl10(root, host, download=True):
    return STL10(root, download=download, mirror=f"{host.url}/")


def transfers(host):
    """The positions of the requests after the one that only finds the host."""
    return [start for _, start in host.requests[1:]]


def test_a_data_set_is_downloaded_verified_and_unpacked(root, host, capsys):
    train = cifar10(root, host).train()
    assert train.inputs.shape == (100, 3, 32, 32)
    assert train.classes[3] == "class3"
    assert [path for path, _ in host.requests] == [f"/{CIFAR}", f"/{CIFAR}"]
    printed = capsys.readouterr().out
    assert f"CIFAR10, {CIFAR} in {root}: downloading" in printed
    files = {path.name for path in root.iterdir()}
    assert files == {CIFAR, "cifar-10-batches-py", f".{CIFAR}.lock"}
    host.requests.clear()
    assert torch.equal(cifar10(root, host).train().inputs, train.inputs)
    assert host.requests == []
    assert capsys.readouterr().out == ""


def test_both_sources_are_looked_up_before_the_first_is_fetched(root, host, capsys):
    data = FederatedDataModule(cifar10(root, host, False), stl10(root, host, False), download=True)
    data.setup()
    order = [path.strip("/") for path, _ in host.requests]
    assert order == [CIFAR, STL, CIFAR, STL]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This run needs:"
    assert lines[1].startswith(f"  CIFAR10, {CIFAR} in {root}: downloading ")
    assert lines[2].startswith(f"  STL10, {STL} in {root}: downloading ")
    assert lines[2].endswith(f"{host.url}/{STL}")
    assert lines[3].startswith("In all ")
    assert len(data.auxiliary_inputs) == 40


def test_what_is_there_is_listed_too(root, host, capsys):
    cifar10(root, host).train()
    capsys.readouterr()
    FederatedDataModule(cifar10(root, host), stl10(root, host)).setup()
    assert f"CIFAR10, {CIFAR} in {root}: there" in capsys.readouterr().out


def test_a_missing_folder_of_the_user_is_found_before_a_download(root, host):
    data = FederatedDataModule(cifar10(root, host), ImageNetSubset(root / "imagenet"))
    with pytest.raises(DataNotFoundError, match="No class folders of ImageNet"):
        data.setup()
    assert host.requests == []
    assert not root.exists()


def test_false_names_every_missing_file_its_folder_and_the_option(root, host):
    data = FederatedDataModule(cifar10(root, host), stl10(root, host), download=False)
    with pytest.raises(DataNotFoundError) as caught:
        data.setup()
    message = str(caught.value)
    assert f"{CIFAR} in {root}; {STL} in {root}" in message
    assert "data.download: true" in message
    assert "\n" not in message
    assert host.requests == []
    assert not root.exists()


def test_null_is_the_sources_own(root, host):
    data = FederatedDataModule(cifar10(root, host), stl10(root, host, download=False))
    with pytest.raises(DataNotFoundError, match=STL):
        data.setup()
    assert host.requests == []


def test_the_option_reaches_the_sources_of_single_clients(root, host):
    silos = {"north": cifar10(root, host, False), "south": cifar10(root, host, False)}
    data = FederatedDataModule(silos, download=True)
    data.setup()
    assert data.client_sizes == [100, 100]
    silos = {"north": cifar10(root / "other", host)}
    with pytest.raises(DataNotFoundError, match="other"):
        FederatedDataModule(silos, download=False).setup()


def test_sources_without_downloads_take_any_value():
    FederatedDataModule(Digits(), Digits(), download=False).setup()


def test_without_a_network_nothing_is_written(root, host):
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
        stl = STL10(root, download=True, mirror=dead)
        with pytest.raises(DataNotFoundError) as caught:
            FederatedDataModule(cifar10(root, host), stl).setup()
    message = str(caught.value)
    assert f"{dead}/{STL} cannot be reached" in message
    assert "refused" in message
    assert f"{CIFAR} ({host.url}/{CIFAR}) to {root}; {STL} ({dead}/{STL}) to {root}" in message
    assert "\n" not in message
    assert not root.exists()


def test_an_address_without_the_file(root, host):
    with pytest.raises(DataNotFoundError, match="404"):
        CIFAR10(root, download=True, mirror=f"{host.url}/other").train()
    assert not root.exists()


def test_an_interrupted_transfer_resumes_at_once(root, host):
    host.cuts = [0, 2000, 1500]  # the first request only finds the host
    assert len(cifar10(root, host).train()) == 100
    assert transfers(host) == [0, 2000, 3500]


def test_an_interrupted_run_is_resumed_by_the_next(root, host):
    host.cuts = [0, 2000, 0]
    with pytest.raises(DataError, match=r"2 kB of \d+ kB have arrived.*again to resume"):
        cifar10(root, host).train()
    assert [path.name for path in root.iterdir() if path.suffix != ".lock"] == [f"{CIFAR}.part"]
    host.requests.clear()
    assert len(cifar10(root, host).train()) == 100
    assert transfers(host) == [2000]
    assert not (root / f"{CIFAR}.part").exists()


def test_a_host_that_cannot_resume_sends_everything(root, host):
    root.mkdir(parents=True)
    (root / f"{CIFAR}.part").write_bytes(b"some bytes")
    host.has_ranges = False
    assert len(cifar10(root, host).train()) == 100


def test_a_truncated_file_is_not_used(root, host):
    published = host.folder / CIFAR
    published.write_bytes(published.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"416.*again to resume"):
        cifar10(root, host).train()
    assert not (root / CIFAR).exists()
    assert not (root / "cifar-10-batches-py").exists()


def test_a_wrong_checksum_leaves_nothing(root, host):
    published = host.folder / CIFAR
    data = bytearray(published.read_bytes())
    data[5000] ^= 1
    published.write_bytes(data)
    with pytest.raises(DataError, match=r"sent a file with the MD5 checksum .*`mirror`"):
        cifar10(root, host).train()
    assert [path.name for path in root.iterdir()] == [f".{CIFAR}.lock"]


def test_bytes_of_another_file_are_not_resumed(root, host):
    root.mkdir(parents=True)
    (root / f"{CIFAR}.part").write_bytes(b"another file")
    assert len(cifar10(root, host).train()) == 100
    assert transfers(host) == [12, 0]


def test_too_little_space_is_found_before_the_download(root, host, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1000))
    with pytest.raises(DataError, match=r"1 kB of free space; expected at least \d+ MB.*make room"):
        FederatedDataModule(cifar10(root, host), stl10(root, host)).setup()
    assert not root.exists()


def test_a_disk_that_fills_up(root, host):
    root.mkdir(parents=True)
    os.symlink("/dev/full", root / f"{CIFAR}.part")
    with pytest.raises(DataError, match="No space left on device"):
        cifar10(root, host).train()
    assert not (root / CIFAR).exists()


def test_a_disk_that_fills_up_while_unpacking(root, host, monkeypatch):
    def fail(archive, scratch):
        (scratch / "half").parent.mkdir()
        (scratch / "half").write_bytes(b"a")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tarfile.TarFile.extractall", fail)
        with pytest.raises(DataError, match="No space left on device"):
            cifar10(root, host).train()
    assert {path.name for path in root.iterdir()} == {CIFAR, f".{CIFAR}.lock"}
    assert len(cifar10(root, host, download=False).train()) == 100  # unpacks what has arrived


def test_an_archive_that_was_copied_needs_no_network(root, host):
    root.mkdir(parents=True)
    (root / CIFAR).write_bytes((host.folder / CIFAR).read_bytes())
    assert len(cifar10(root, host, download=False).train()) == 100
    assert host.requests == []


def test_a_damaged_archive_is_downloaded_again(root, host):
    root.mkdir(parents=True)
    (root / CIFAR).write_bytes(b"half an archive")
    with pytest.raises(DataNotFoundError, match=CIFAR):
        cifar10(root, host, download=False).train()
    assert len(cifar10(root, host).train()) == 100


def test_auxiliary_data_of_svhn_are_its_training_file_alone(tmp_path):
    def files(*parts):
        return [download.file for download in SVHN(tmp_path).downloads(parts)]

    assert files("auxiliary") == ["train_32x32.mat"]
    assert files("train", "test") == ["test_32x32.mat", "train_32x32.mat"]
