"""The base class of text sources, which tokenize texts and cache the token ids."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data.cache import cached
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.text_reader import Texts, class_indices, class_names
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.errors import DataError


class TextSource(Source):
    """Texts as token ids of one length.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            small English vocabulary of the package.
        max_length: The number of token ids of a text; longer texts are truncated, shorter padded.
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
        self,
        folder: Path,
        key: Mapping[str, str | int],
        read: Callable[[], Texts],
        classes: Sequence[str],
    ) -> Examples:
        """Tokenizes the texts that ``read`` returns, or loads the token ids from the cache.

        Args:
            folder: The folder of the cache.
            key: Everything that determines the texts, labels and clients.
            read: Returns the texts, with or without labels and clients.
            classes: The names of the classes; empty for the distinct labels.
        """
        own = {"kind": "tokens", "tokenizer": self._tokenize.digest(), "classes": repr(classes)}
        tensors = cached(folder, {**key, **own}, lambda: self._encode(read, classes))
        if "labels" not in tensors:
            return Examples(tensors["inputs"])
        examples = Examples(tensors["inputs"], tensors["labels"], _unpack(tensors["classes"]))
        if "clients" not in tensors:
            return examples
        names = _unpack(tensors["client_names"])
        return replace(examples, clients=tensors["clients"], client_names=names)

    def _encode(self, read: Callable[[], Texts], classes: Sequence[str]) -> dict[str, Tensor]:
        texts, labels, clients = read()
        result: dict[str, Tensor] = {}
        if labels:
            names = tuple(classes) or class_names(labels)
            result |= {"labels": class_indices(labels, names), "classes": _pack(names)}
        if clients:
            names = class_names(clients)
            result |= {"clients": class_indices(clients, names), "client_names": _pack(names)}
        return {"inputs": self._tokenize(texts), **result}


def _pack(names: Sequence[str]) -> Tensor:
    """Names as bytes: the cache holds tensors only."""
    return torch.tensor(list("\0".join(names).encode()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> tuple[str, ...]:
    return tuple(bytes(packed.tolist()).decode().split("\0"))


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
