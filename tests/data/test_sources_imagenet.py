"""Subsets of ImageNet, in its own layout and in Tiny ImageNet's."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedaux_pl.data.sources import ImageNet32, ImageNetSubset
from fedaux_pl.errors import DataError, DataNotFoundError

CHIHUAHUA, BEAGLE, GOLDFISH = "n02085620", "n02088364", "n01443537"
ROBIN, BOTTLE = "n01558993", "n04557648"
COLORS = {CHIHUAHUA: 40, BEAGLE: 80, GOLDFISH: 120, ROBIN: 160, BOTTLE: 200}


def write(root, inner=""):
    for wnid, level in COLORS.items():
        folder = root / wnid / inner
        folder.mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (50, 40), (level + i,) * 3).save(folder / f"{wnid}_{i}.JPEG")
    return root


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "train")
    (tmp_path / "wnids.txt").write_text("not a class folder")
    return tmp_path


@pytest.mark.parametrize(
    ("train", "inner", "subset", "classes"),
    [
        ("train", "", "Dogs", [CHIHUAHUA, BEAGLE]),
        ("", "", "Birds", [ROBIN]),
        ("", "images", "Animals", [GOLDFISH, ROBIN, CHIHUAHUA, BEAGLE]),
        ("train", "images", "n00001740", [GOLDFISH, ROBIN, CHIHUAHUA, BEAGLE, BOTTLE]),
        ("", "", "n02085620", [CHIHUAHUA]),
    ],
)
def test_classes_below_an_id(tmp_path, train, inner, subset, classes):
    write(tmp_path / train, inner)
    examples = ImageNetSubset(tmp_path, subset, size=8).train()
    assert examples.inputs.shape == (2 * len(classes), 3, 8, 8)
    levels = [COLORS[wnid] + i for wnid in classes for i in range(2)]
    assert (examples.inputs.amax((1, 2, 3)).int() - torch.tensor(levels)).abs().max() <= 1
    assert examples.labels.tolist() == [label for label in range(len(classes)) for _ in range(2)]


def test_names_and_auxiliary(root):
    source = ImageNetSubset(root, "Dogs")
    assert source.train().classes == ("Chihuahua", "beagle")
    assert torch.equal(source.auxiliary(), source.train().inputs)
    with pytest.raises(DataError, match="has no test data"):
        source.test()


def test_classes_of_the_same_name_get_their_ids(tmp_path):
    for wnid in ("n02012849", "n03126707"):  # the bird and the machine
        (tmp_path / wnid).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / wnid / "a.png")
    classes = ImageNetSubset(tmp_path, "n00001740").train().classes
    assert classes == ("crane (n02012849)", "crane (n03126707)")


def test_large_jpegs_are_cropped_at_the_center(tmp_path):
    # big enough to be decoded at a fraction of the size
    pixels = np.zeros((400, 600, 3), dtype=np.uint8)
    pixels[:200, 100:300, 0] = 250
    pixels[200:, 300:500, 2] = 250
    (tmp_path / CHIHUAHUA).mkdir()
    Image.fromarray(pixels).save(tmp_path / CHIHUAHUA / "a.JPEG", quality=95)
    image = ImageNetSubset(tmp_path, "Dogs", size=16).auxiliary()[0]
    expected = torch.zeros(3, 16, 16)
    expected[0, :8, :8] = expected[2, 8:, 8:] = 250
    inner = torch.cat([torch.arange(1, 7), torch.arange(9, 15)])
    difference = (image.float() - expected)[:, inner][:, :, inner].abs()
    assert difference.max() < 12


def test_unknown_subset_lists_the_names():
    with pytest.raises(ValueError, match=r"'Cats'; .*Animals, Birds, Dogs.*or a WordNet id"):
        ImageNetSubset("data", "Cats")
    with pytest.raises(ValueError, match="got 'n1'; expected to be the id of a noun in WordNet"):
        ImageNetSubset("data", "n1")


def test_no_class_below_the_id(root):
    with pytest.raises(DataNotFoundError) as caught:
        ImageNetSubset(root, "Invertebrates").train()
    assert "n01905661 (invertebrate, with 767 WordNet ids)" in str(caught.value)
    assert "the 5 class folders" in str(caught.value)
    assert str(root) in str(caught.value)


@pytest.mark.parametrize("place", ["missing", ""])
def test_no_class_folders(tmp_path, place):
    with pytest.raises(
        DataNotFoundError, match=r"names like n02085620, were found in /.*\n.*quickstart"
    ):
        ImageNetSubset(tmp_path / place, "Dogs").train()


def test_empty_class_folder(root):
    (root / "train" / "n02086240").mkdir()  # Shih-Tzu
    with pytest.raises(DataError, match="n02086240 holds no images"):
        ImageNetSubset(root, "Dogs").train()


def write_batch(path, count, first, width=3072):
    rows = np.arange(count * width).reshape(count, width) % 251 + first
    np.savez(path, data=rows.astype(np.uint8), labels=np.arange(1, count + 1))


def test_batch_files_of_imagenet32(tmp_path):
    write_batch(tmp_path / "train_data_batch_1.npz", 3, first=0)
    write_batch(tmp_path / "train_data_batch_10.npz", 2, first=1)
    write_batch(tmp_path / "val_data.npz", 4, first=2)
    source = ImageNet32(tmp_path)
    train = source.train()
    assert train.inputs.shape == (5, 3, 32, 32)
    assert train.labels.tolist() == [0, 1, 2, 0, 1]
    assert train.inputs[0, 1, 0, 0] == 1024 % 251  # the second channel
    assert train.inputs[3, 0, 0, 0] == 1
    assert (train.classes[0], len(train.classes)) == ("1", 1000)
    assert torch.equal(source.auxiliary(), train.inputs)
    assert len(source.test()) == 4


def test_wrong_files_of_imagenet32(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"no train_data_batch_1\.npz in"):
        ImageNet32(tmp_path).auxiliary()
    write_batch(tmp_path / "train_data_batch_1.npz", 2, first=0, width=3 * 64**2)
    with pytest.raises(DataError, match=r"\(2, 12288\); expected uint8 and \(N, 3072\)"):
        ImageNet32(tmp_path).auxiliary()
    (tmp_path / "train_data_batch_1.npz").write_bytes(b"none")
    with pytest.raises(DataError, match="cannot be read"):
        ImageNet32(tmp_path).auxiliary()
