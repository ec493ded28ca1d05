"""Images in .npz files."""

import zipfile

import numpy as np
import pytest
import torch

from fedaux_pl.data.sources import NpzImages
from fedaux_pl.errors import DataError, DataNotFoundError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
TRAIN = {"train_x": IMAGES, "train_y": np.array([0, 2, 1, 2])}


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_defaults(tmp_path):
    test = {"test_x": IMAGES[:2], "test_y": np.array([1, 0], dtype=np.uint8)}
    names = np.array(["n1", "n2", "n3"])
    path = write(tmp_path / "a.npz", **TRAIN, **test, wnids=names)
    source = NpzImages(path)
    train, test = source.train(), source.test()
    assert torch.equal(train.inputs, torch.from_numpy(IMAGES))
    assert train.labels.tolist() == [0, 2, 1, 2]
    assert train.classes == test.classes == ("0", "1", "2")
    assert test.labels.tolist() == [1, 0]
    assert torch.equal(source.auxiliary(), train.inputs)
    assert NpzImages(path, arrays={"classes": "wnids"}).train().classes == ("n1", "n2", "n3")


def test_other_names_files_and_labels_that_are_names(tmp_path):
    names = np.array(["ant", "bee", "cat"])
    path = write(tmp_path / "a.npz", x=IMAGES, y=np.array([0, 1, 0, 1]), classes=names)
    test = write(tmp_path / "b.npz", test_x=IMAGES[:1], v=np.array(["cat"]))
    source = NpzImages(path, test, {"train_x": "x", "train_y": "y", "test_y": "v"})
    assert source.train().classes == ("ant", "bee", "cat")
    assert source.test().labels.tolist() == [2]
    with pytest.raises(ValueError, match=r"arrays: got \{'images': 'x'\}; .*names to train_x"):
        NpzImages(path, arrays={"images": "x"})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3, 8, 8), (2, 3, 8, 8)),
        ((2, 8, 6, 3), (2, 3, 8, 6)),
        ((2, 8, 8, 1), (2, 1, 8, 8)),
        ((2, 3, 8, 3), (2, 3, 8, 3)),  # could be either
        ((2, 8, 6), (2, 1, 8, 6)),
    ],
)
def test_layouts(tmp_path, shape, expected):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    got = NpzImages(write(tmp_path / "a.npz", train_x=array)).auxiliary()
    assert got.shape == expected
    assert got.is_contiguous()
    if shape[1] != expected[1] and len(shape) == 4:
        array = array.transpose(0, 3, 1, 2)
    assert torch.equal(got.flatten(), torch.from_numpy(array.copy()).flatten())


def test_size(tmp_path):
    array = np.zeros((1, 1, 4, 8), dtype=np.uint8)
    array[..., 2:6] = 100  # the square in the middle
    got = NpzImages(write(tmp_path / "a.npz", train_x=array), size=2).auxiliary()
    assert torch.equal(got, torch.full((1, 1, 2, 2), 100, dtype=torch.uint8))


def test_test_data_alone(tmp_path):
    """As at the server of real sites."""
    path = write(tmp_path / "a.npz", test_x=IMAGES, test_y=np.array([0, 1, 1, 0]))
    assert NpzImages(path).test().classes == ("0", "1")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_x": IMAGES / 255}, "got float64; .*: scale it to 0 ... 255"),
        ({"train_x": IMAGES[:, 0, 0]}, r"'train_x' in /.* got shape \(4, 8\)"),
        ({"train_x": np.zeros((4, 8, 8, 7), np.uint8)}, r"\(4, 8, 8, 7\).*1 to 4 channels"),
        ({"train_x": np.array([None, {}], dtype=object)}, "Object arrays .* images of one size"),
        ({"train_x": IMAGES[:, :, :0]}, r"no images: its shape is \(4, 3, 0, 8\)"),
        ({"train_y": np.zeros(4)}, "got float64 .*; expected integers or names"),
        ({"train_y": np.zeros(3, int)}, r"'train_y' in /.*: labels: got .*; expected .* \(4,\)"),
        ({"train_y": np.zeros(0, int)}, "labels: got .*; expected int64 of shape"),
        ({"classes": np.array("ab")}, r"'classes' .* of shape \(\); expected .* names"),
        ({"classes": np.array(["a", "b"])}, r"labels: got 2; expected 0 \.\.\. 1 .*\(a, b\)"),
        ({"train_client": np.array([0, 1])}, r"'train_client' in .* got 2; .* each of 4 samples"),
    ],
)
def test_unsuitable_arrays(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", **(TRAIN | arrays))).train()


@pytest.mark.parametrize(
    ("labels", "found"),
    [([0, 7, 14, 7], "0, 7, 14"), ([0, 1, -1, 2], "-1, 0, 1, 2")],
)
def test_labels_with_gaps_are_refused_without_names(tmp_path, labels, found):
    arrays = {"train_x": IMAGES, "train_y": np.array(labels)}
    message = (
        rf"^labels of 'train_y' in /\S*: got {found}; expected 0 \.\.\. "
        r".* or set data\.classes .* `classes`"
    )
    source = NpzImages(write(tmp_path / "a.npz", **arrays, test_x=IMAGES, test_y=np.arange(4)))
    for read in (source.train, source.test):
        with pytest.raises(DataError, match=message):
            read()
    if min(labels) >= 0:
        names = np.array([f"class {n}" for n in range(15)])
        train = NpzImages(write(tmp_path / "a.npz", **arrays, classes=names)).train()
        assert train.labels.tolist() == labels
        assert len(train.classes) == 15


def test_missing_files_and_arrays(tmp_path):
    path = write(tmp_path / "b.npz", pictures=IMAGES, train_x=IMAGES)
    with pytest.raises(
        DataError,
        match=rf"{path} .* 'train_y'; its arrays are pictures, train_x: set `arrays: \{{train_y: ",
    ):
        NpzImages(path).train()
    with pytest.raises(DataNotFoundError, match=f"No NumPy file was found at {tmp_path}/a.npz"):
        NpzImages(tmp_path / "a.npz").train()


def test_not_an_npz_file(tmp_path):
    (tmp_path / "a.npz").write_text("words")
    (tmp_path / "b.npz").write_bytes(write(tmp_path / "c.npz", train_x=IMAGES).read_bytes()[:300])
    (tmp_path / "d.npz").touch()
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("train_x.npy", "no header of an array")
    for name in "abdf":
        with pytest.raises(DataError, match=r"not a readable .*: write it with num") as refusal:
            NpzImages(tmp_path / f"{name}.npz").auxiliary()
        assert "pickle" not in str(refusal.value)
    names = write(tmp_path / "g.npz", train_x=IMAGES, train_y=np.array(["a"] * 4, dtype=object))
    with pytest.raises(DataError, match="names of dtype str, not object"):
        NpzImages(names).train()
    np.save(tmp_path / "e.npy", IMAGES)
    with pytest.raises(DataError, match=r"not a zip file.*numpy\.savez"):
        NpzImages(tmp_path / "e.npy").auxiliary()


def test_given_clients_and_validation_images(tmp_path):
    plain = NpzImages(write(tmp_path / "plain.npz", **TRAIN))
    assert plain.train().clients is plain.validation() is None
    extra = {"val_x": IMAGES[:2], "val_y": np.array([1, 0])}
    sites = np.array(["north", "south", "north", "east"])
    extra |= {"test_x": IMAGES[:3], "test_y": np.array([1, 0, 1]), "test_client": sites[:3]}
    path = write(tmp_path / "a.npz", **TRAIN, **extra, train_client=sites)
    train, validation = NpzImages(path).train(), NpzImages(path).validation()
    assert validation.clients is None
    test = NpzImages(path).test()
    assert (test.clients.tolist(), test.client_names) == ([0, 1, 0], ("north", "south"))
    assert NpzImages(path, arrays={"test_client": None}).test().clients is None
    assert train.clients.tolist() == [1, 2, 1, 0]
    assert train.client_names == ("east", "north", "south")
    assert torch.equal(validation.inputs, torch.from_numpy(IMAGES[:2]))
    assert validation.labels.tolist() == [1, 0]
    assert validation.classes == train.classes
    off = NpzImages(path, arrays={"train_client": None, "val_x": None})
    assert off.train().clients is off.validation() is None
    named = write(tmp_path / "b.npz", **TRAIN, site=np.array([1, 10, 2, 1]), vx=IMAGES[:1])
    sites = NpzImages(named, arrays={"train_client": "site"})
    assert sites.train().client_names == ("1", "2", "10")
    # an array that the user names must exist
    with pytest.raises(DataError, match="holds no array 'sites'; its arrays are"):
        NpzImages(named, arrays={"train_client": "sites"}).train()
    with pytest.raises(DataError, match="holds no array 'w'"):
        NpzImages(named, arrays={"val_x": "w", "val_y": "train_y"}).validation()
    with pytest.raises(DataError, match="holds no array 'val_y'"):
        NpzImages(named, arrays={"val_x": "vx"}).validation()
