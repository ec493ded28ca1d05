"""A small data set of word definitions that needs no download."""

import csv
import lzma
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._text_source import TextSource

CLASSES = ("animal", "body", "food", "location", "person", "plant")


class Glosses(TextSource):
    """Definitions of 5,100 English nouns from WordNet 3.1, included in the package.

    The task is to predict from the definition whether a noun is an animal, a body part, a food, a
    location, a person or a plant. Each class has 250 training and 100 test definitions; 3,000
    definitions of other nouns, without labels, are the auxiliary data.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            included vocabulary of 4,000 word pieces.
        max_length: The number of token ids of a definition.

    Example:
        >>> from fedaux_pl.data import Glosses
        >>> test = Glosses(max_length=16).test()
        >>> test.inputs.shape, test.classes[:3]
        (torch.Size([600, 16]), ('animal', 'body', 'food'))
    """

    def __init__(self, tokenizer: str | Path | None = None, max_length: int = 32) -> None:
        super().__init__(tokenizer, max_length)

    def train(self) -> Examples:
        """The 1,500 training definitions."""
        return self._labeled("train")

    def test(self) -> Examples:
        """The 600 test definitions."""
        return self._labeled("test")

    def auxiliary(self) -> Tensor:
        """The 3,000 unlabeled definitions, without those that begin like a training definition.

        Truncated to 24 tokens one of them would be a private sample; to 32 tokens none.
        """
        ids = self._tokenize([text for part, _, text in _rows() if part == "auxiliary"])
        private = set(map(tuple, self.train().inputs.tolist()))
        return ids[[tuple(row) not in private for row in ids.tolist()]]

    def _labeled(self, split: str) -> Examples:
        rows = [(label, text) for part, label, text in _rows() if part == split]
        labels = torch.tensor([CLASSES.index(label) for label, _ in rows])
        return Examples(self._tokenize([text for _, text in rows]), labels, CLASSES)


def _rows() -> list[list[str]]:
    """The rows (part, label, text) of the file."""
    packed = (files("fedaux_pl.data.assets") / "glosses.csv.xz").read_bytes()
    return list(csv.reader(lzma.decompress(packed).decode().splitlines()))[1:]
