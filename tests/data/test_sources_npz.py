"""Images in .npz files."""

import numpy as np
import pytest
import torch

from fedaux_pl.data.sources import NpzImages
from fedaux_pl.errors import DataError, DataNotFoundError


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_defaults(tmp_path, images):
    path = write(
        tmp_path / "a.npz",
        train_x=images,
        train_y=np.array([0, 2, 1, 2]),
        test_x=images[:2],
        test_y=np.array([1, 0], dtype=np.uint8),
        wnids=np.array(["n1", "n2", "n3"]),
    )
    source = NpzImages(path)
    train, test = source.train(), source.test()
    assert torch.equal(train.inputs, torch.from_numpy(images))
    assert train.labels.tolist() == [0, 2, 1, 2]
    assert train.classes == test.classes == ("0", "1", "2")
    assert test.labels.tolist() == [1, 0]
    assert torch.equal(source.auxiliary(), train.inputs)
    assert NpzImages(path, classes="wnids").train().classes == ("n1", "n2", "n3")


def test_other_names_and_files(tmp_path, images):
    names = np.array(["ant", "bee", "cat"])
    path = write(tmp_path / "a.npz", x=images, y=np.array([0, 1, 0, 1]), classes=names)
    test = write(tmp_path / "b.npz", u=images[:1], v=np.array([2]))
    source = NpzImages(path, test, images="x", labels="y", test_images="u", test_labels="v")
    assert source.train().classes == ("ant", "bee", "cat")
    assert source.test().labels.tolist() == [2]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3, 8, 8), (2, 3, 8, 8)),
        ((2, 8, 6, 3), (2, 3, 8, 6)),
        ((2, 8, 8, 1), (2, 1, 8, 8)),
        ((2, 3, 8, 3), (2, 3, 8, 3)),  # could be either
        ((2, 1, 1, 1), (2, 1, 1, 1)),
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


def test_without_labels(tmp_path, images):
    path = write(tmp_path / "a.npz", train_x=images)
    assert NpzImages(path, labels=None).train().labels is None
    assert len(NpzImages(path).auxiliary()) == 4
    with pytest.raises(
        DataError, match=r"'train_y'; its arrays are train_x: set `labels` to .* null"
    ):
        NpzImages(path).train()


def test_missing_file_or_array(tmp_path, images):
    path = write(tmp_path / "b.npz", pictures=images, targets=np.zeros(4, dtype=int))
    with pytest.raises(DataError, match=f"{path} .* 'train_x'; its arrays are pictures, targets"):
        NpzImages(path).auxiliary()
    with pytest.raises(DataNotFoundError, match=f"No NumPy file was found at {tmp_path}/a.npz"):
        NpzImages(tmp_path / "a.npz").train()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"train_x": np.zeros((2, 3, 4, 4), dtype=np.float32)},
            "but is float32: scale it to 0 ... 255",
        ),
        ({"train_x": np.zeros((2, 4), dtype=np.uint8)}, r"but has \(2, 4\)"),
        ({"train_x": np.zeros((2, 8, 8, 7), dtype=np.uint8)}, r"1 to 4 channels.*\(2, 8, 8, 7\)"),
        ({"train_x": np.array([None, {}], dtype=object)}, "Object arrays .* images of one size"),
    ],
)
def test_unsuitable_images(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", **arrays)).auxiliary()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(4), "as integers, but is float64"),
        (np.zeros(3, dtype=int), "labels must be int64 of shape"),
        (np.zeros(0, dtype=int), "labels must be int64 of shape"),
    ],
)
def test_unsuitable_labels(tmp_path, images, labels, message):
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", train_x=images, train_y=labels)).train()


def test_not_an_npz_file(tmp_path, images):
    (tmp_path / "a.npz").write_text("words")
    (tmp_path / "b.npz").write_bytes(write(tmp_path / "c.npz", train_x=images).read_bytes()[:300])
    (tmp_path / "d.npz").touch()
    for name in "abd":
        with pytest.raises(DataError, match=r"not a readable .*: write it with num") as refusal:
            NpzImages(tmp_path / f"{name}.npz").auxiliary()
        assert "pickle" not in str(refusal.value)
    np.save(tmp_path / "e.npy", images)
    with pytest.raises(DataError, match=r"no archive of named arrays.*numpy\.savez"):
        NpzImages(tmp_path / "e.npy").auxiliary()


@pytest.mark.parametrize(
    ("labels", "found"),
    [([0, 7, 14, 7], "0, 7, 14"), ([1, 2, 1, 2], "1, 2"), ([0, 1, -1, 2], "-1, 0, 1, 2")],
)
def test_labels_with_gaps_are_refused_without_names(tmp_path, images, labels, found):
    arrays = {"train_x": images, "train_y": np.array(labels)}
    message = (
        rf"labels must be 0 \.\.\. .* they are {found}: set data\.classes, or an array `classes`"
    )
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", **arrays)).train()
    if min(labels) >= 0:
        names = np.array([f"class {n}" for n in range(15)])
        train = NpzImages(write(tmp_path / "a.npz", **arrays, classes=names)).train()
        assert train.labels.tolist() == labels
        assert len(train.classes) == 15


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_x": np.zeros((3, 1, 0, 4), np.uint8)}, r"no images: its shape is \(3, 1, 0, 4\)"),
        ({"train_x": np.zeros((0, 1, 4, 4), np.uint8)}, "holds no images"),
        (
            {
                "train_x": np.zeros((2, 1, 4, 4), np.uint8),
                "train_y": np.array([0, 1]),
                "classes": np.array("ab"),
            },
            r"'classes' .* must be a list of class names, but has the shape \(\)",
        ),
    ],
)
def test_empty_images_and_names_of_another_shape(tmp_path, arrays, message):
    arrays = {"train_y": np.zeros(0, int), **arrays}
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", **arrays)).train()


def test_messages_name_the_file_and_the_option(tmp_path, images):
    path = write(tmp_path / "a.npz", train_x=images, train_y=np.array([0, 1]), test_x=images)
    with pytest.raises(
        DataError, match=rf"'train_x' and 'train_y' in {path}: labels must .* \(4,\)"
    ):
        NpzImages(path).train()
    with pytest.raises(DataError, match=r"holds no array 'test_y'; .*: set `test_labels` to"):
        NpzImages(path).test()


def test_given_clients_and_validation_images(tmp_path, images):
    arrays = {"train_x": images, "train_y": np.array([0, 1, 2, 0])}
    plain = NpzImages(write(tmp_path / "plain.npz", **arrays))
    assert plain.train().clients is plain.validation() is None
    extra = {"val_x": images[:2], "val_y": np.array([1, 0])}
    sites = np.array(["north", "south", "north", "east"])
    path = write(tmp_path / "a.npz", **arrays, **extra, train_client=sites)
    train, validation = NpzImages(path).train(), NpzImages(path).validation()
    assert train.clients.tolist() == [1, 2, 1, 0]
    assert train.client_names == ("east", "north", "south")
    assert torch.equal(validation.inputs, torch.from_numpy(images[:2]))
    assert validation.labels.tolist() == [1, 0]
    assert validation.classes == train.classes
    off = NpzImages(path, clients=None, validation_images=None)
    assert off.train().clients is off.validation() is None
    named = write(tmp_path / "b.npz", **arrays, site=np.array([1, 10, 2, 1]), vx=images[:1])
    assert NpzImages(named, clients="site").train().client_names == ("1", "2", "10")
    # an array that the user names must exist
    with pytest.raises(DataError, match="holds no array 'sites'; its arrays are"):
        NpzImages(named, clients="sites").train()
    with pytest.raises(DataError, match="holds no array 'w'"):
        NpzImages(named, validation_images="w", validation_labels="train_y").validation()
    with pytest.raises(DataError, match="holds no array 'val_y'"):
        NpzImages(named, validation_images="vx").validation()


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (np.array([0, 1]), r"'train_client' in .* one client for each of the 4 samples, .* \(2,\)"),
        (np.array(["a", "", "b", "c"]), "'train_client' in .* is empty for sample 1"),
        (np.zeros(4), "must hold client names or integers, but is float64"),
    ],
)
def test_wrong_clients(tmp_path, images, clients, message):
    arrays = {"train_x": images, "train_y": np.array([0, 1, 2, 0]), "train_client": clients}
    with pytest.raises(DataError, match=message):
        NpzImages(write(tmp_path / "a.npz", **arrays)).train()
