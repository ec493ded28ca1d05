"""Texts as token ids of one length, made once."""

import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.errors import DataError
from fedaux_pl.models.pretrained import load_tokenizer

SHORTEST = 3  # a token between the two that frame a text
_PART = 4096  # texts of one call
_QUIET = 2.0  # seconds before a progress bar appears


class Tokens:
    """Makes token ids of texts with the tokenizer of an encoder.

    Args:
        tokenizer: A folder or a name on the hub, usually the source of the model; None for the
            small English vocabulary that comes with the package.
        max_length: L, the number of ids of a text: longer texts are cut, shorter ones padded.
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int) -> None:
        if max_length < SHORTEST:
            raise ValueError(f"max_length must be at least {SHORTEST}, but is {max_length}")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._loaded: Any = None

    @property
    def source(self) -> str:
        """Where the tokenizer is."""
        if self.tokenizer is None:
            return str(files("fedaux_pl.data.assets") / "glosses_tokenizer")
        return str(self.tokenizer)

    def load(self) -> Any:
        """The tokenizer, once it is needed.

        Raises:
            DataError: If it cannot pad, or is made for shorter texts.
        """
        if self._loaded is None:
            loaded = load_tokenizer(self.source)
            if loaded.pad_token_id is None:
                raise DataError(
                    f"the tokenizer {self.source} has no padding token, so that texts of different "
                    "lengths cannot be stacked: choose another, or save it with a pad_token that "
                    "its model has a vector for"
                )
            if self.max_length > loaded.model_max_length:
                raise DataError(
                    f"max_length = {self.max_length} is more than the {loaded.model_max_length} "
                    f"tokens that {self.source} is made for: set it to at most that"
                )
            self._loaded = loaded
        return self._loaded

    def digest(self) -> str:
        """A hash of everything that decides which ids a text becomes."""
        loaded = self.load()
        inner = getattr(loaded, "backend_tokenizer", None)
        if inner is not None:
            inner.no_truncation()  # what an earlier call set is no part of it
            inner.no_padding()
        text = json.dumps(loaded.get_vocab(), sort_keys=True) if inner is None else inner.to_str()
        said = f"{type(loaded).__name__}\0{self.max_length}\0{loaded.pad_token_id}\0{text}"
        return hashlib.sha256(said.encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Token ids, int32 of shape (len(texts), max_length)."""
        loaded = self.load()
        result = torch.empty((len(texts), self.max_length), dtype=torch.int32)
        with tqdm(
            # disable=None: silent unless stderr is a terminal
            total=len(texts),
            desc="tokenising",
            unit="text",
            disable=None,
            delay=_QUIET,
        ) as bar:
            for start in range(0, len(texts), _PART):
                part = list(texts[start : start + _PART])
                ids = loaded(
                    part,
                    truncation=True,
                    max_length=self.max_length,
                    padding="max_length",
                    padding_side="right",
                    return_attention_mask=False,
                    return_token_type_ids=False,
                )["input_ids"]
                result[start : start + len(part)] = torch.tensor(ids, dtype=torch.int32)
                bar.update(len(part))
        return result
