"""What is a kind of what, after WordNet 3.0, whose ids name the classes of ImageNet."""

import re
from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

TABLE = "wordnet_hypernyms.npz"


@cache
def _array(name: str) -> NDArray[np.int32]:
    with as_file(files("fedaux_pl.data.assets") / TABLE) as path, np.load(path) as table:
        return np.asarray(table[name])


@cache
def _lemmas() -> list[str]:
    return _array("lemmas").tobytes().decode("ascii").split("\n")


def _place(wnid: str) -> int:
    """Where an id stands in the table; ValueError where it does not."""
    if not re.fullmatch(r"n\d{8}", wnid):
        raise ValueError(
            f"a WordNet id is the letter n and eight digits, like n02084071, but got {wnid!r}"
        )
    offset, synsets = int(wnid[1:]), _array("synset")
    place = int(np.searchsorted(synsets, offset))
    if place == len(synsets) or synsets[place] != offset:
        raise ValueError(
            f"{wnid} is not the id of a noun in WordNet 3.0: use an id like n02084071 (dog)"
        )
    return place


def hyponyms(wnid: str) -> frozenset[str]:
    """Everything that is a kind or an instance of something.

    Args:
        wnid: A WordNet id, such as n02084071 for "dog".

    Returns:
        The ids below this one at any depth, and the id itself.
    """
    child, parent = _array("child"), _array("parent")
    found = front = _array("synset")[[_place(wnid)]]
    while len(front):
        front = np.setdiff1d(child[np.isin(parent, front)], found)
        found = np.concatenate([found, front])
    return frozenset(f"n{offset:08d}" for offset in found.tolist())


def lemma(wnid: str) -> str:
    """The word for a WordNet id.

    Args:
        wnid: A WordNet id.

    Returns:
        The first lemma of the synset, such as "dog".
    """
    return _lemmas()[_place(wnid)].replace("_", " ")
