"""The noun hierarchy of WordNet 3.0, whose ids name the classes of ImageNet."""

import re
from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

_TABLE = "wordnet_hypernyms.npz"


@cache
def _array(name: str) -> NDArray[np.int32]:
    with as_file(files("fedaux_pl.data.assets") / _TABLE) as path, np.load(path) as table:
        return np.asarray(table[name])


@cache
def _lemmas() -> list[str]:
    return _array("lemmas").tobytes().decode("ascii").split("\n")


def _row(wnid: str) -> int:
    """The row of an id in the table; raises a ValueError if there is none."""
    if not re.fullmatch(r"n\d{8}", wnid):
        raise ValueError(
            f"a WordNet id is the letter n and eight digits, like n02084071, but got {wnid!r}"
        )
    offset, synsets = int(wnid[1:]), _array("synset")
    row = int(np.searchsorted(synsets, offset))
    if row == len(synsets) or synsets[row] != offset:
        raise ValueError(
            f"{wnid} is not the id of a noun in WordNet 3.0: use an id like n02084071 (dog)"
        )
    return row


def hyponyms(wnid: str) -> frozenset[str]:
    """The WordNet ids of all kinds and instances of a noun, at any depth, with its own."""
    child, parent = _array("child"), _array("parent")
    found = newest = _array("synset")[[_row(wnid)]]
    while len(newest):
        newest = np.setdiff1d(child[np.isin(parent, newest)], found)
        found = np.concatenate([found, newest])
    return frozenset(f"n{offset:08d}" for offset in found.tolist())


def lemma(wnid: str) -> str:
    """The first word of a WordNet id, such as "dog" for n02084071."""
    return _lemmas()[_row(wnid)].replace("_", " ")
