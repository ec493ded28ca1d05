from pathlib import Path

import pytest

pytest.importorskip("timm")

import timm
from PIL import Image

from fedaux_pl.errors import DataNotFoundError
from paper.imagenet_subsets import (
    PUBLISHED,
    count_images,
    ilsvrc_classes,
    imagenet_subsets,
)


def test_the_classes_of_imagenet():
    listed = Path(timm.__file__).parent / "data" / "_info" / "imagenet_synsets.txt"
    assert ilsvrc_classes() == set(listed.read_text().split())


def test_the_numbers_of_synsets_classes_and_images():
    table = imagenet_subsets()
    assert {row[0]: (row[1], row[3], row[4]) for row in table.rows} == {
        "Devices": ("n03183080", "2,765", "130"),
        "Birds": ("n01503061", "872", "59"),
        "Animals": ("n00015388", "4,017", "398"),
        "Dogs": ("n02084071", "190", "118"),
        "Invertebrates": ("n01905661", "767", "61"),
        "Structures": ("n04341686", "1,529", "58"),
    }
    for row in table.rows:
        expected, published = (int(value.replace(",", "")) for value in row[5:])
        assert published == PUBLISHED[row[0]]
        assert expected == pytest.approx(published, rel=0.025)
        assert published <= 1300 * int(row[4])  # a class has at most 1,300 images
    assert "needs ImageNet" in table.caption


def test_images_are_counted(tmp_path):
    for wnid, count in {"n02085620": 3, "n02085782": 2, "n01440764": 4}.items():  # two are dogs
        (tmp_path / "train" / wnid).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4)).save(tmp_path / "train" / wnid / f"{i}.png")
    assert count_images(tmp_path, "Dogs") == (2, 5)
    assert count_images(tmp_path, "Animals") == (3, 9)
    with pytest.raises(DataNotFoundError, match="No class below n03183080"):
        imagenet_subsets(root=tmp_path)
