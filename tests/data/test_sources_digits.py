"""The embedded digits."""

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedaux_pl.data.sources import Digits
from tools.build_digits import build

ASSETS = Path(__file__).parents[2] / "fedaux_pl" / "data" / "assets"


def parts():
    return Digits().train(), Digits().test(), Digits("auxiliary").train()


def test_sizes_and_types():
    train, test, auxiliary = parts()
    assert (len(train), len(test), len(auxiliary)) == (901, 298, 598)
    assert train.inputs.shape == (901, 1, 8, 8)
    assert train.inputs.dtype == torch.uint8
    assert (int(train.inputs.min()), int(train.inputs.max())) == (0, 255)
    assert train.classes == tuple("0123456789")
    assert torch.equal(Digits().auxiliary(), auxiliary.inputs)
    assert torch.equal(Digits("auxiliary").auxiliary(), auxiliary.inputs)
    assert torch.equal(Digits("auxiliary").test().inputs, test.inputs)


def test_parts_are_a_disjoint_split_of_the_original():
    digits = load_digits()
    original = np.concatenate(
        [np.rint(digits.data * 255 / 16), digits.target[:, None]], axis=1
    ).astype(np.int64)
    stored = np.concatenate(
        [
            np.concatenate([part.inputs.flatten(1).numpy(), part.labels[:, None].numpy()], axis=1)
            for part in parts()
        ]
    ).astype(np.int64)
    # all images differ, so that equal sets of rows mean that each is in exactly one part
    assert len(np.unique(original, axis=0)) == len(original) == len(stored) == 1797
    assert np.array_equal(np.unique(stored, axis=0), np.unique(original, axis=0))


def test_classes_are_balanced_in_each_part():
    total = np.bincount(load_digits().target)
    for part, share in zip(parts(), (3 / 6, 1 / 6, 2 / 6), strict=True):
        assert np.abs(np.bincount(part.labels.numpy()) - share * total).max() <= 1


def test_file_is_what_the_script_writes(tmp_path):
    with np.load(build(tmp_path)) as built, np.load(ASSETS / "digits.npz") as shipped:
        assert sorted(built.files) == sorted(shipped.files) == ["images", "labels", "part"]
        for name in built.files:
            assert np.array_equal(built[name], shipped[name])
            assert shipped[name].dtype == np.uint8
        assert shipped["images"].max() == 16


def test_size_and_wrong_part():
    images = Digits(size=16).auxiliary()
    assert images.shape == (598, 1, 16, 16)
    small = Digits().auxiliary().float().mean((1, 2, 3))
    assert (images.float().mean((1, 2, 3)) - small).abs().max() < 4
    with pytest.raises(ValueError, match="part: got 'test'; expected to be private or auxiliary"):
        Digits("test")


def test_license_is_shipped():
    text = (ASSETS / "DIGITS_LICENSE.txt").read_text()
    for words in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "Changes:"):
        assert words in text


def test_needs_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # an import of it fails now
    # under its own name: other tests list the sources that are not of the package
    module = runpy.run_path(str(ASSETS.parent / "sources/embedded.py"), run_name=Digits.__module__)
    assert len(module["Digits"]().train()) == 901
