"""The sources over torchvision's classes read small files in the real formats."""

import pickle

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from fedaux_pl.data.sources import CIFAR10, CIFAR100, STL10, SVHN
from fedaux_pl.errors import DataNotFoundError


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    """Lets files that are not the published ones pass torchvision's comparison of checksums."""
    for dataset in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10):
        for name in ("train_list", "test_list"):
            entries = [[file, None] for file, _ in getattr(dataset, name)]
            monkeypatch.setattr(dataset, name, entries)
        if hasattr(dataset, "meta"):
            monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": None})
    entries = {split: [url, name, None] for split, (url, name, _) in SVHN_FILES.items()}
    monkeypatch.setattr(datasets.SVHN, "split_list", entries)


SVHN_FILES = datasets.SVHN.split_list


def dump(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def test_cifar10(tmp_path, rng):
    folder = tmp_path / "cifar-10-batches-py"
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    rows = {name: rng.integers(0, 256, (2, 3072), dtype=np.uint8) for name in names}
    for i, name in enumerate(names):
        dump(folder / name, {"data": rows[name], "labels": [i, 9 - i]})
    labels = [f"class{i}" for i in range(10)]
    dump(folder / "batches.meta", {"label_names": labels})

    source = CIFAR10(tmp_path)
    train, test = source.train(), source.test()
    expected = np.concatenate([rows[name] for name in names[:5]]).reshape(10, 3, 32, 32)
    assert torch.equal(train.inputs, torch.from_numpy(expected))
    assert train.inputs.is_contiguous()
    assert train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert train.classes == tuple(labels)
    assert torch.equal(test.inputs, torch.from_numpy(rows["test_batch"].reshape(2, 3, 32, 32)))
    assert test.labels.tolist() == [5, 4]
    assert torch.equal(source.auxiliary(), train.inputs)


def test_cifar100_has_the_fine_labels(tmp_path, rng):
    folder = tmp_path / "cifar-100-python"
    rows = rng.integers(0, 256, (3, 3072), dtype=np.uint8)
    for name in ("train", "test"):
        dump(folder / name, {"data": rows, "fine_labels": [99, 0, 7], "coarse_labels": [1, 2, 3]})
    dump(folder / "meta", {"fine_label_names": [f"class{i}" for i in range(100)]})
    train = CIFAR100(tmp_path).train()
    assert torch.equal(train.inputs, torch.from_numpy(rows.reshape(3, 3, 32, 32)))
    assert train.labels.tolist() == [99, 0, 7]
    assert train.classes[7] == "class7"
    assert len(CIFAR100(tmp_path).auxiliary()) == 3
    every_image = CIFAR100(tmp_path, all_auxiliary=True).auxiliary()
    assert torch.equal(every_image, train.inputs.repeat(2, 1, 1, 1))


def test_svhn(tmp_path, rng):
    images = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    labels = np.array([[10], [1], [9], [5]], dtype=np.uint8)
    content = {"X": images.transpose(2, 3, 1, 0), "y": labels}
    savemat(tmp_path / "train_32x32.mat", content)
    savemat(tmp_path / "test_32x32.mat", content)
    source = SVHN(tmp_path)
    for examples in (source.train(), source.test()):
        assert torch.equal(examples.inputs, torch.from_numpy(images))
        assert examples.inputs.is_contiguous()
        assert examples.labels.tolist() == [0, 1, 9, 5]
        assert examples.classes[0] == "0"


@pytest.fixture
def stl10(tmp_path, rng):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    images = {}
    for split, count in {"train": 3, "test": 2, "unlabeled": 5}.items():
        images[split] = rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        # the file has columns first
        images[split].transpose(0, 1, 3, 2).tofile(folder / f"{split}_X.bin")
    np.array([1, 10, 5], dtype=np.uint8).tofile(folder / "train_y.bin")
    np.array([2, 3], dtype=np.uint8).tofile(folder / "test_y.bin")
    return tmp_path, {name: torch.from_numpy(array) for name, array in images.items()}


def test_stl10_at_its_own_size(stl10):
    root, images = stl10
    source = STL10(root, size=96)
    assert torch.equal(source.auxiliary(), images["unlabeled"])
    assert torch.equal(source.train().inputs, images["train"])
    assert source.train().labels.tolist() == [0, 9, 4]
    assert torch.equal(source.test().inputs, images["test"])
    assert source.test().labels.tolist() == [1, 2]
    assert source.test().classes[1] == "bird"


def test_stl10_is_resized_with_antialiasing(stl10, monkeypatch):
    root, images = stl10
    monkeypatch.setattr("fedaux_pl.data.image_arrays._CHUNK", 2)
    got = STL10(root).auxiliary()
    # the triangle that a reduction to a third weighs pixels with
    weights = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0], dtype=torch.float64) / 9
    kernel = torch.outer(weights, weights).expand(3, 1, 5, 5)
    inner = torch.nn.functional.conv2d(
        images["unlabeled"].double(), kernel, stride=3, padding=1, groups=3
    )
    assert got.shape == (5, 3, 32, 32)
    assert got.dtype == torch.uint8
    difference = (got[..., 1:-1, 1:-1].double() - inner[..., 1:-1, 1:-1]).abs()
    assert difference.max() <= 0.51


def test_stl10_reads_the_original_once(stl10, monkeypatch):
    root, _ = stl10
    first = STL10(root).auxiliary()
    assert [path.name for path in root.iterdir()] == ["stl10_binary"]  # no cache among the data
    monkeypatch.setattr(datasets.STL10, "__init__", lambda *_, **__: pytest.fail("read again"))
    assert torch.equal(STL10(root).auxiliary(), first)


@pytest.mark.parametrize(
    ("source", "method", "file"),
    [
        (CIFAR100, "test", "cifar-100-python.tar.gz"),
        (SVHN, "train", "train_32x32.mat"),
        (STL10, "auxiliary", "stl10_binary.tar.gz"),
    ],
)
def test_missing_data(tmp_path, source, method, file):
    with pytest.raises(DataNotFoundError) as caught:
        getattr(source(tmp_path / "none"), method)()
    message = str(caught.value)
    assert f"{file} in {tmp_path / 'none'}" in message
    assert "download: true" in message
    assert "--config quickstart" in message
    assert "\n" not in message


def test_damaged_data(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.SVHN, "split_list", SVHN_FILES)
    (tmp_path / "train_32x32.mat").write_bytes(b"half a file")
    with pytest.raises(DataNotFoundError, match=r"SVHN cannot be read .*\nDelete the damaged"):
        SVHN(tmp_path, download=True).train()


def test_size_must_be_positive():
    with pytest.raises(ValueError, match="size: got 0; expected to be a positive number of pixels"):
        STL10(size=0)
