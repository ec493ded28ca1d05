"""The base class of text sources, which tokenize texts and cache the token ids."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data.cache import cached
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.text_reader import class_indices, class_names
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.errors import DataError

ReadTexts = Callable[[], tuple[list[str], list[str]]]


class TextSource(Source):
    """Texts as token ids of one length.

    Args:
        tokenizer: See :class:`fedaux_pl.data.tokenizer.FixedLengthTokenizer`.
        max_length: The number of token ids of a text.
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._tokenize = FixedLengthTokenizer(tokenizer, max_length)

    @property
    def input_format(self) -> dict[str, str | int]:
        """The tokenizer and the length, with which to tokenize new texts."""
        named = {} if self.tokenizer is None else {"tokenizer": str(self.tokenizer)}
        return {"kind": "text", "max_length": self.max_length, **named}

    def check_model(self, model: nn.Module) -> None:
        """Raises a DataError for an encoder whose padding token differs from the tokenizer's."""
        ours, theirs = self._tokenize.load().pad_token_id, getattr(model, "pad_id", None)
        if theirs is not None and ours != theirs:
            raise DataError(
                f"the tokenizer {self._tokenize.source} pads texts with token {ours}, but the "
                f"encoder takes token {theirs} for padding: give the data's `tokenizer` and the "
                f"model's `source` the same folder or name, or the model `pad_id: {ours}`"
            )

    def load_tokens(
        self, folder: Path, key: Mapping[str, str | int], read: ReadTexts, classes: Sequence[str]
    ) -> Examples:
        """Tokenizes the texts that ``read`` returns, or loads the token ids from the cache.

        Args:
            folder: The folder of the cache.
            key: Everything that determines the texts and labels.
            read: Returns texts and labels; the labels may be empty.
            classes: The names of the classes; empty for the distinct labels.
        """
        own = {"kind": "tokens", "tokenizer": self._tokenize.digest(), "classes": repr(classes)}
        tensors = cached(folder, {**key, **own}, lambda: self._encode(read, classes))
        if "labels" not in tensors:
            return Examples(tensors["inputs"])
        names = tuple(bytes(tensors["classes"].tolist()).decode().split("\0"))
        return Examples(tensors["inputs"], tensors["labels"], names)

    def _encode(self, read: ReadTexts, classes: Sequence[str]) -> dict[str, Tensor]:
        texts, labels = read()
        if not labels:
            return {"inputs": self._tokenize(texts)}
        names = tuple(classes) or class_names(labels)
        indices = class_indices(labels, names)
        # the cache holds tensors only: the class names are stored as bytes
        packed = torch.tensor(list("\0".join(names).encode()), dtype=torch.uint8)
        return {"inputs": self._tokenize(texts), "labels": indices, "classes": packed}


def sample_positions(count: int, limit: int | None, seed: int) -> Tensor:
    """The sorted positions of ``limit`` of ``count`` samples, drawn at random; None for all."""
    if limit is None or limit >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:limit].sort().values


def check_limit(limit: int | None) -> int | None:
    """Returns the limit, or raises a ValueError below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or null for all, but is {limit}")
    return limit
