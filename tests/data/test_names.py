"""Files and folders whose names are not UTF-8 are read, and their names can be printed."""

import hashlib
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fedaux_pl.data import ImageFolder
from fedaux_pl.data.cache import fingerprint
from fedaux_pl.data.fingerprints import machine_key
from fedaux_pl.data.input_checks import note
from fedaux_pl.errors import DataError
from fedaux_pl.names import readable
from fedaux_pl.sites.ledger import Ledger

CLASSES = (b"caf\xe9", "thé".encode())


@pytest.fixture
def photos(tmp_path):
    """Two classes, of which one has a name in Latin-1, below a folder with another such name."""
    root = tmp_path / os.fsdecode(b"photos\xff")
    for number, name in enumerate(CLASSES):
        folder = root / os.fsdecode(name)
        folder.mkdir(parents=True)
        pixels = np.full((4, 4), number, np.uint8)
        Image.fromarray(pixels).save(folder / os.fsdecode(b"p\xfe.png"))
    return root


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_folder_is_read_and_cached(photos, tmp_path, monkeypatch, on_disk):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / os.fsdecode(b"cache\xfe")))
    for _ in range(2):  # the second time from the cache
        source = ImageFolder(photos, size=4, channels=1)
        source.on_disk = on_disk
        examples = source.train()
        assert examples.inputs[:][:, 0, 0, 0].tolist() == [0, 1]
        assert examples.classes == ("caf\\xe9", "thé")
        assert source.data_name == "photos\\xff"
    assert len(list(tmp_path.glob("cache*/fedaux_pl/*.pt"))) == (not on_disk)


def test_clients_with_such_names(photos):
    for client in (b"s\xfcd", b"nord"):
        shutil.copytree(photos, photos.parent / "all" / os.fsdecode(client))
    examples = ImageFolder(photos.parent / "all", size=4, clients="first_level").train()
    assert examples.client_names == ("nord", "s\\xfcd")
    assert examples.classes == ("caf\\xe9", "thé")


def test_notes_and_errors_name_them(photos, capsys):
    note.cache_clear()
    damaged = photos / os.fsdecode(CLASSES[0]) / os.fsdecode(b"bad\xe8.png")
    damaged.write_text("no picture")
    with pytest.raises(DataError, match="cannot read the image") as caught:
        ImageFolder(photos, size=4).train()
    assert "photos\\xff/caf\\xe9/bad\\xe8.png (" in readable(str(caught.value))
    ImageFolder(photos, size=4, on_error="skip").train()
    told = capsys.readouterr().err
    assert "note: 1 of 3 image files in " in told
    assert "photos\\xff cannot be read and are skipped: caf\\xe9/bad\\xe8.png" in told


def test_a_name_that_looks_like_another_is_refused(photos):
    (photos / "caf\\xe9").mkdir()
    with pytest.raises(DataError, match=r"two sub-folders of .* have the same name"):
        ImageFolder(photos, size=4).train()


def test_fingerprints_of_other_names_stay_as_they_are(tmp_path):
    file = tmp_path / "thé.png"
    file.write_bytes(b"content")
    status = file.stat()
    state = status.st_ino, status.st_size, status.st_ctime_ns
    digest = hashlib.blake2b(key=machine_key(), digest_size=32)
    digest.update(f"{file}\0{state}\n".encode())
    assert fingerprint([file]) == digest.hexdigest()


def test_a_ledger_names_the_folder_of_a_run(tmp_path, monkeypatch):
    here = tmp_path / os.fsdecode(b"caf\xe9")
    here.mkdir()
    monkeypatch.chdir(here)
    assert Ledger("key", tmp_path).origin == f"a run in {tmp_path}/caf\\xe9"


def test_text_that_is_no_file_name_is_readable_too():
    assert readable("a\ud800b") == "a\\ud800b"
    assert readable("thé") == "thé"
