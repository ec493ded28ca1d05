"""Small data sets that are included in the package: handwritten digits and word definitions."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data.image_arrays import resize
from fedaux_pl.data.input_checks import check_size
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples, PartSource
from fedaux_pl.data.tokenizer import TextSource
from fedaux_pl.errors import check_setting

_ASSETS = files("fedaux_pl.data.assets")
_PARTS = ("private", "test", "auxiliary")
_MAX_PIXEL = 16  # in the file: a pixel counts the black pixels of a 4 x 4 block
_GLOSS_CLASSES = ("animal", "body", "food", "location", "person", "plant")


class Digits(PartSource):
    """1,797 handwritten digits, 8 x 8 pixels, gray, 10 classes, included in the package.

    They are the test set of the UCI optical digits (Alpaydin and Kaynak 1998, CC BY 4.0), in three
    fixed disjoint parts: 901 private, 298 test and 598 auxiliary images. The images of each class
    were assigned, in the order of the file, to private, auxiliary, private, test, private,
    auxiliary, and so on, so that all parts have the same classes and writers.

    Args:
        part: The part that ``train()`` returns, with labels: private or auxiliary.
        size: The height and width of the images (bilinear, antialiased).

    Examples:
        >>> from fedaux_pl.data import Digits
        >>> source = Digits(size=16)
        >>> source.train().inputs.shape, source.auxiliary().shape
        (torch.Size([901, 1, 16, 16]), torch.Size([598, 1, 16, 16]))
    """

    has_validation = False

    def __init__(self, part: Literal["private", "auxiliary"] = "private", size: int = 8) -> None:
        check_setting("part", part, part in ("private", "auxiliary"), "be private or auxiliary")
        self.part = part
        self.size = check_size(size)

    def load(self, part: str) -> Examples:
        """Load a part, or the ``auxiliary`` images."""
        with as_file(_ASSETS / "digits.npz") as path, np.load(path) as file:
            chosen = file["part"] == _PARTS.index(self.part if part == "train" else part)
            images = file["images"][chosen]
            labels = file["labels"][chosen].astype(np.int64)
        scaled = np.rint(images * (255 / _MAX_PIXEL)).astype(np.uint8)
        inputs = resize(torch.from_numpy(scaled)[:, None], self.size)
        return Examples(inputs, torch.from_numpy(labels), tuple("0123456789"))

    def auxiliary(self) -> Inputs:
        """The 598 auxiliary images."""
        return self.load_existing("auxiliary").inputs


class Glosses(TextSource):
    """Definitions of 5,100 English nouns from WordNet 3.1, included in the package.

    The task is to predict from the definition whether a noun is an animal, a body part, a food, a
    location, a person or a plant. Each class has 250 training and 100 test definitions; 3,000
    definitions of other nouns, without labels, are the auxiliary data.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            included vocabulary of 4,000 word pieces.
        max_length: The number of token ids of a definition.

    Examples:
        >>> from fedaux_pl.data import Glosses
        >>> test = Glosses(max_length=16).test()
        >>> test.inputs.shape, test.classes[:3]
        (torch.Size([600, 16]), ('animal', 'body', 'food'))
    """

    has_validation = False

    def __init__(self, tokenizer: str | Path | None = None, max_length: int = 32) -> None:
        super().__init__(tokenizer, max_length)

    def load(self, part: str) -> Examples:
        """Load a part."""
        labels, texts = _read_part(part)
        numbers = torch.tensor([_GLOSS_CLASSES.index(label) for label in labels])
        return Examples(self._tokenize(texts), numbers, _GLOSS_CLASSES)

    def auxiliary(self) -> Tensor:
        """The 3,000 unlabeled definitions, without those that begin like a training definition.

        Truncated to 24 tokens one of them would be a private sample; to 32 tokens none.
        """
        ids = self._tokenize(_read_part("auxiliary")[1])
        private = set(map(tuple, self.train().inputs[:].tolist()))
        return ids[[tuple(row) not in private for row in ids.tolist()]]


def _read_part(part: str) -> tuple[list[str], list[str]]:
    """Return the labels and the texts of a part of the file."""
    import pandas as pd

    with as_file(_ASSETS / "glosses.csv.xz") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    rows = table[table["part"] == part]
    return list(rows["label"]), list(rows["text"])
