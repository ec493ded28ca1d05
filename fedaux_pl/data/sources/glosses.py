"""A small real set of texts that needs no download."""

import csv
import lzma
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._text import TextSource

CLASSES = ("animal", "body", "food", "location", "person", "plant")


class Glosses(TextSource):
    """Definitions of 5,100 English nouns, from WordNet 3.1, which come with the package.

    The task is to say from the definition alone what a noun names: an animal, a part of the body,
    a food, a location, a person or a plant. There are 250 definitions of each class to train on
    and 100 for the test; 3,000 more of nouns of all kinds, without labels, are auxiliary.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            vocabulary of 4,000 pieces of words that comes with the definitions.
        max_length: How many tokens of a definition are kept.
    """

    def __init__(self, tokenizer: str | Path | None = None, max_length: int = 32) -> None:
        super().__init__(tokenizer, max_length)

    def train(self) -> Examples:
        """The 1,500 labelled definitions to train on."""
        return self._labelled("train")

    def test(self) -> Examples:
        """The 600 test definitions."""
        return self._labelled("test")

    def auxiliary(self) -> Tensor:
        """The 3,000 definitions of nouns of all kinds."""
        return self._tokens([text for part, _, text in _rows() if part == "auxiliary"])

    def _labelled(self, wanted: str) -> Examples:
        chosen = [(label, text) for part, label, text in _rows() if part == wanted]
        labels = torch.tensor([CLASSES.index(label) for label, _ in chosen])
        return Examples(self._tokens([text for _, text in chosen]), labels, CLASSES)


def _rows() -> list[list[str]]:
    packed = (files("fedaux_pl.data.assets") / "glosses.csv.xz").read_bytes()
    return list(csv.reader(lzma.decompress(packed).decode().splitlines()))[1:]
