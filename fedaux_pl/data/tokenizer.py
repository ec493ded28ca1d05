"""Tokenizes texts to a fixed length."""

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
from fedaux_pl.models.encoder_loading import load_tokenizer

MIN_LENGTH = 3  # [CLS], one token, [SEP]
_TEXTS_PER_CALL = 4096
_BAR_DELAY = 2.0  # seconds before a progress bar appears


class FixedLengthTokenizer:
    """Turns texts into token ids of a fixed length with the tokenizer of an encoder.

    Args:
        tokenizer: A folder or a name on the Hugging Face hub, usually the source of the model; None
            for the small English vocabulary of the package.
        max_length: L, the number of ids of a text: longer texts are truncated, shorter ones padded.

    Example:
        >>> from fedaux_pl.data.tokenizer import FixedLengthTokenizer
        >>> FixedLengthTokenizer(None, max_length=8)(["a small bird", "a tree"]).shape
        torch.Size([2, 8])
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int) -> None:
        if max_length < MIN_LENGTH:
            raise ValueError(f"max_length must be at least {MIN_LENGTH}, but is {max_length}")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._loaded: Any = None

    @property
    def source(self) -> str:
        """The folder of the tokenizer, or its name on the hub."""
        if self.tokenizer is None:
            return str(files("fedaux_pl.data.assets") / "glosses_tokenizer")
        return str(self.tokenizer)

    def load(self) -> Any:
        """Loads the Hugging Face tokenizer, once."""
        if self._loaded is None:
            loaded = load_tokenizer(self.source)
            if loaded.pad_token_id is None:
                raise DataError(
                    f"the tokenizer {self.source} has no padding token, which texts of different "
                    "lengths need: choose another tokenizer, or save this one with a pad_token "
                    "that its model has an embedding for"
                )
            if self.max_length > loaded.model_max_length:
                raise DataError(
                    f"max_length = {self.max_length} is more than the {loaded.model_max_length} "
                    f"tokens that {self.source} allows: set it to at most {loaded.model_max_length}"
                )
            self._loaded = loaded
        return self._loaded

    def digest(self) -> str:
        """A hash of everything that determines the ids of a text."""
        loaded = self.load()
        inner = getattr(loaded, "backend_tokenizer", None)
        if inner is not None:
            inner.no_truncation()  # an earlier call left its settings, which are part of to_str
            inner.no_padding()
        text = json.dumps(loaded.get_vocab(), sort_keys=True) if inner is None else inner.to_str()
        content = f"{type(loaded).__name__}\0{self.max_length}\0{loaded.pad_token_id}\0{text}"
        return hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Token ids, int32 of shape (len(texts), max_length)."""
        loaded = self.load()
        result = torch.empty((len(texts), self.max_length), dtype=torch.int32)
        # disable=None: no bar unless stderr is a terminal
        options = {"desc": "tokenizing", "unit": "text", "disable": None, "delay": _BAR_DELAY}
        with tqdm(total=len(texts), **options) as bar:
            for start in range(0, len(texts), _TEXTS_PER_CALL):
                part = list(texts[start : start + _TEXTS_PER_CALL])
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
