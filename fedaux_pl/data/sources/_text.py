"""What all sources of text share: tokenised once, kept on disk, handed out as token ids."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data.cache import cached
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.tables import class_names, number
from fedaux_pl.data.tokens import Tokens
from fedaux_pl.errors import DataError

Read = Callable[[], tuple[list[str], list[str]]]


class TextSource(Source):
    """Texts as token ids of one length.

    Args:
        tokenizer: See :class:`fedaux_pl.data.tokens.Tokens`.
        max_length: See there.
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._tokens = Tokens(tokenizer, max_length)

    @property
    def input_format(self) -> dict[str, str | int]:
        """The tokenizer and the length, by which other texts become inputs of the same kind."""
        named = {} if self.tokenizer is None else {"tokenizer": str(self.tokenizer)}
        return {"kind": "text", "max_length": self.max_length, **named}

    def check_model(self, model: nn.Module) -> None:
        """Refuses an encoder that takes another token for padding than the tokenizer does."""
        own, read = self._tokens.load().pad_token_id, getattr(model, "pad_id", None)
        if read is not None and own != read:
            raise DataError(
                f"the tokenizer {self._tokens.source} pads texts with token {own}, but the encoder "
                f"takes token {read} for padding: give the data's `tokenizer` and the model's "
                f"`source` the same folder or name, or the model `pad_id: {own}`"
            )

    def kept(
        self, folder: Path, key: Mapping[str, str | int], read: Read, classes: Sequence[str]
    ) -> Examples:
        """Token ids and labels of what ``read`` gives, from disk where they were kept before.

        Args:
            folder: Where to keep them.
            key: What decides which texts they are.
            read: Gives texts and labels, or no labels.
            classes: The names of the classes; where empty, those that the labels name.
        """
        said = {"kind": "tokens", "tokenizer": self._tokens.digest(), "classes": repr(classes)}
        return unpack(cached(folder, {**key, **said}, lambda: self._encode(read, classes)))

    def _encode(self, read: Read, classes: Sequence[str]) -> dict[str, Tensor]:
        texts, labels = read()
        if not labels:
            return {"inputs": self._tokens(texts)}
        names = tuple(classes) or class_names(labels)
        numbers = number(labels, names)
        # the cache holds tensors alone
        packed = torch.tensor(list("\0".join(names).encode()), dtype=torch.uint8)
        return {"inputs": self._tokens(texts), "labels": numbers, "classes": packed}


def unpack(tensors: Mapping[str, Tensor]) -> Examples:
    """Kept tensors as examples."""
    if "labels" not in tensors:
        return Examples(tensors["inputs"])
    names = tuple(bytes(tensors["classes"].tolist()).decode().split("\0"))
    return Examples(tensors["inputs"], tensors["labels"], names)


def draw(count: int, limit: int | None, seed: int) -> Tensor:
    """Which of so many samples are taken: all, or as many as the limit says, at random."""
    if limit is None or limit >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:limit].sort().values


def check_limit(limit: int | None) -> int | None:
    """Refuses a limit that leaves nothing."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or null for all, but is {limit}")
    return limit
