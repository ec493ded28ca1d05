"""Inputs in host memory and on disk are those of a tensor; files that change are refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedaux_pl.data import FederatedDataModule, ImageFolder, NpzImages
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import keyed_fingerprint, record_digests
from fedaux_pl.data.image_arrays import from_array
from fedaux_pl.data.lazy_inputs import (
    LazyInputs,
    choose_memory,
    join_inputs,
    read_batches,
    read_later,
)
from fedaux_pl.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (23, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(23) % 3


def on_disk(source):
    source.on_disk = True
    return source.auxiliary()


def of_tensor(folder):
    return read_later(from_array(IMAGES, ""))


def of_npz(folder):
    np.savez(folder / "a.npz", train_y=LABELS, train_x=IMAGES)
    return on_disk(NpzImages(folder / "a.npz"))


def of_npy(folder):
    np.save(folder / "train_x.npy", IMAGES)
    return on_disk(NpzImages(folder))


def of_pictures(folder):
    for i, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{i:02}.png")
    return on_disk(ImageFolder(folder, size=6))


def of_parts(folder):
    first, last = from_array(IMAGES[:9], ""), read_later(from_array(IMAGES[9:], ""))
    return join_inputs([first, last])


@pytest.mark.parametrize("make", [of_tensor, of_npz, of_npy, of_pictures, of_parts])
def test_they_are_indexed_as_a_tensor(tmp_path, make):
    lazy, tensor = make(tmp_path), from_array(IMAGES, "")
    assert isinstance(lazy, LazyInputs)
    assert (lazy.shape, lazy.dtype, lazy.device) == (tensor.shape, tensor.dtype, tensor.device)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    table = np.array([[3, 1], [22, 9]])
    for index in (5, -1, slice(4, 9), slice(None), order, torch.tensor([7, 8, 8, 2]), table):
        assert torch.equal(lazy[index], tensor[index])
    rows = torch.arange(23) % 2 == 1
    assert torch.equal(lazy.select(rows)[order[order < 11]], tensor[rows][order[order < 11]])
    batches = [*order.split(4), slice(2, 5)]
    for one, other in zip(read_batches(lazy, batches), read_batches(tensor, batches), strict=True):
        assert torch.equal(one, other)
        assert one.is_contiguous()


def test_hashes_are_those_of_the_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr("fedaux_pl.data.lazy_inputs._CHUNK_BYTES", 5 * 108)
    lazy, tensor, labels = of_npz(tmp_path), from_array(IMAGES, ""), torch.from_numpy(LABELS)
    assert tensor_digest(lazy) == tensor_digest(tensor)
    key = bytes(32)
    assert keyed_fingerprint(key, lazy, labels) == keyed_fingerprint(key, tensor, labels)
    assert np.array_equal(record_digests(lazy, labels, key), record_digests(tensor, labels, key))


def test_images_are_scaled_as_in_memory(tmp_path):
    lazy = of_npz(tmp_path)
    lazy, tensor = (NpzImages(tmp_path / "a.npz", size=4) for _ in range(2))
    assert torch.equal(on_disk(lazy)[:], tensor.auxiliary())


def test_a_file_that_is_shorter_than_it_says(tmp_path):
    np.save(tmp_path / "train_x.npy", IMAGES)
    with open(tmp_path / "train_x.npy", "r+b") as file:
        file.truncate(2000)
    with pytest.raises(DataError, match=r"train_x\.npy is shorter .* has 2,484 bytes, but 1,872 "):
        on_disk(NpzImages(tmp_path))


@pytest.mark.parametrize("change", ["append", "rewrite", "truncate", "remove"])
def test_a_file_that_changes_while_it_is_read(tmp_path, change):
    lazy, path = of_npy(tmp_path), tmp_path / "train_x.npy"
    lazy[:2]
    if change == "append":
        path.write_bytes(path.read_bytes() + b"\0")
    elif change == "rewrite":
        np.save(path, IMAGES[::-1])
    elif change == "truncate":
        path.write_bytes(path.read_bytes()[:500])
    else:
        path.unlink()
    with pytest.raises(DataError, match=r"train_x\.npy (has changed since|cannot be read anymore)"):
        lazy[:2]


def test_a_picture_that_changes_or_breaks(tmp_path, capsys):
    lazy = of_pictures(tmp_path)
    Image.fromarray(IMAGES[0]).save(tmp_path / "03.png")
    with pytest.raises(DataError, match=r"03\.png has changed since it was opened"):
        lazy[:8]
    (tmp_path / "03.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cannot read the image .*03\.png"):
        lazy[:8]
    skipping = ImageFolder(tmp_path, size=6, on_error="skip")
    assert len(on_disk(skipping)) == 22
    assert "are skipped: 03.png\n" in capsys.readouterr().err


def test_arrays_that_cannot_stay_on_disk(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", train_x=IMAGES)
    with pytest.raises(DataError, match=r"'train_x' in .* is compressed and cannot stay on disk"):
        on_disk(NpzImages(tmp_path / "a.npz"))
    np.save(tmp_path / "train_x.npy", np.asfortranarray(IMAGES))
    with pytest.raises(DataError, match=r"expected numbers in C order, but got uint8 of shape"):
        on_disk(NpzImages(tmp_path))


def test_memory_is_chosen_by_size(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 300, "SC_PAGE_SIZE": 10**7}.get)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (0, 6 * 10**8))
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_memory(2 * 10**8, cuda, 1) == choose_memory(10**9, cpu, 1) == "device"
    assert not caplog.text
    assert choose_memory(3 * 10**8, cuda, 1) == "host"
    assert choose_memory(10**9, cpu, 2) == "disk"
    assert "data.memory: host, because images take 0.3 GB" in caplog.text
    assert "data.memory: disk, because images take 1.0 GB" in caplog.text


def test_a_data_module_measures_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 3 * 2484, "SC_PAGE_SIZE": 1}.get)
    of_npz(tmp_path), of_pictures(tmp_path)
    (tmp_path / "a.npz").rename(tmp_path / "data.npz")
    source = NpzImages(tmp_path / "data.npz", arrays={"test_x": "train_x", "test_y": "train_y"})
    chosen = FederatedDataModule(source, num_clients=2)  # on disk, since memory is too small
    in_host = FederatedDataModule(source, num_clients=2, memory="host")
    chosen.setup()
    assert isinstance(chosen.test_examples.inputs, LazyInputs)
    in_host.setup()
    (tmp_path / "data.npz").unlink()
    assert isinstance(in_host.test_examples.inputs, LazyInputs)
    assert torch.equal(in_host.test_examples.inputs[:], from_array(IMAGES, ""))
    assert ImageFolder(tmp_path, size=6).image_bytes() == IMAGES.nbytes
    with pytest.raises(ValueError, match=r"memory: got 'ram'; .*device, host, disk or null"):
        FederatedDataModule(NpzImages("a.npz"), memory="ram")
