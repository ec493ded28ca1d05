"""Tokenizes texts to a fixed length and caches the token ids, for the sources of texts."""

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.data.cache import CacheKey, cached
from fedaux_pl.data.labels import class_indices, class_names
from fedaux_pl.data.source import Examples, PartSource
from fedaux_pl.errors import DataError, check_setting
from fedaux_pl.files import user_cache
from fedaux_pl.models.encoder import load_tokenizer

_MIN_LENGTH = 3  # [CLS], one token, [SEP]
_TEXTS_PER_CALL = 4096
_NAMES = {"labels": "classes", "clients": "client_names"}  # fields of Examples


class Texts(NamedTuple):
    """The texts of a file, and the label and the client of each text; empty lists for none."""

    texts: list[str]
    labels: list[str]
    clients: list[str]


class FixedLengthTokenizer:
    """Turns texts into ``max_length`` token ids with the tokenizer of an encoder.

    Longer texts are truncated, and shorter texts are padded.

    Args:
        tokenizer: A folder or a name on the Hugging Face hub, usually the source of the model; None
            for the small English vocabulary of the package.
        max_length: The number of token ids of every text.
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int) -> None:
        expected = f"be at least {_MIN_LENGTH}"
        check_setting("max_length", max_length, max_length >= _MIN_LENGTH, expected)
        embedded = files("fedaux_pl.data.assets") / "glosses_tokenizer"
        self.source = str(embedded if tokenizer is None else tokenizer)
        self.max_length = max_length
        self._loaded: Any = None

    def load(self) -> Any:
        """Load the Hugging Face tokenizer, once."""
        if self._loaded is None:
            loaded = load_tokenizer(self.source)
            longest = loaded.model_max_length
            if loaded.pad_token_id is None:
                raise DataError(
                    f"the tokenizer {self.source} has no padding token: choose another one, or "
                    "save this one with a pad_token that its model has an embedding for"
                )
            if self.max_length > longest:
                raise DataError(
                    f"max_length = {self.max_length} is more than the {longest} tokens that "
                    f"{self.source} allows: set it to at most {longest}"
                )
            self._loaded = loaded
        return self._loaded

    def digest(self) -> str:
        """Return a hash of everything that determines the ids of a text."""
        loaded = self.load()
        inner = getattr(loaded, "backend_tokenizer", None)
        if inner is not None:
            inner.no_truncation()  # settings of an earlier call would be part of to_str
            inner.no_padding()
        text = json.dumps(loaded.get_vocab(), sort_keys=True) if inner is None else inner.to_str()
        content = f"{type(loaded).__name__}\0{self.max_length}\0{loaded.pad_token_id}\0{text}"
        return hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return token ids, int32 of shape (len(texts), max_length)."""
        loaded = self.load()
        result = torch.empty((len(texts), self.max_length), dtype=torch.int32)
        # disable=None shows the bar only if stderr is a terminal
        options = {"desc": "tokenizing", "unit": "text", "disable": None, "delay": 2.0}
        with tqdm(total=len(texts), **options) as bar:
            for start in range(0, len(texts), _TEXTS_PER_CALL):
                some = list(texts[start : start + _TEXTS_PER_CALL])
                ids = loaded(
                    some,
                    truncation=True,
                    max_length=self.max_length,
                    padding="max_length",
                    padding_side="right",
                    return_attention_mask=False,
                    return_token_type_ids=False,
                )["input_ids"]
                result[start : start + len(some)] = torch.tensor(ids, dtype=torch.int32)
                bar.update(len(some))
        return result


class TextSource(PartSource):
    """A source of texts as token ids of one length.

    Args:
        tokenizer: As in ``FixedLengthTokenizer``.
        max_length: The number of token ids of every text; None if the inputs are no texts.
    """

    def __init__(self, tokenizer: str | Path | None, max_length: int | None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        length = _MIN_LENGTH if max_length is None else max_length
        self._tokenize = FixedLengthTokenizer(tokenizer, length)

    @property
    def input_format(self) -> dict[str, str | int]:
        """The tokenizer and the length that new texts need; empty if the inputs are no texts."""
        if self.max_length is None:
            return {}
        text: dict[str, str | int] = {"kind": "text", "max_length": self.max_length}
        if self.tokenizer is not None:
            text["tokenizer"] = str(self.tokenizer)
        return text

    def check_model(self, model: nn.Module) -> None:
        """Raise a DataError for an encoder whose padding token differs from the tokenizer's."""
        pad_id_of_model = getattr(model, "pad_id", None)
        if self.max_length is None or pad_id_of_model is None:
            return
        pad_id = self._tokenize.load().pad_token_id
        if pad_id != pad_id_of_model:
            raise DataError(
                f"the tokenizer {self._tokenize.source} pads texts with token {pad_id}, but the "
                f"encoder takes token {pad_id_of_model} for padding: give the data's `tokenizer` "
                "and the model's `source` the same folder or name, or give the model "
                f"`pad_id: {pad_id}`"
            )

    def load_tokens(
        self, key: CacheKey, read: Callable[[], Texts], classes: Sequence[str]
    ) -> Examples:
        """Tokenize texts, or load their token ids from the user's cache.

        Args:
            key: Everything that determines the texts, their labels and their clients.
            read: Returns the texts; it is called only if they are not cached.
            classes: The names of the classes; empty for the distinct labels.
        """

        def build() -> dict[str, Tensor]:
            texts, labels, clients = read()
            result: dict[str, Tensor] = {}
            for entry, values, known in (("labels", labels, classes), ("clients", clients, ())):
                if values:
                    names = tuple(known) or class_names(values)
                    result[entry] = class_indices(values, names)
                    packed = list("\0".join(names).encode())  # the cache holds tensors only
                    result[_NAMES[entry]] = torch.tensor(packed, dtype=torch.uint8)
            return {"inputs": self._tokenize(texts), **result}

        key = {
            **key,
            "kind": "tokens",
            "tokenizer": self._tokenize.digest(),
            "classes": repr(classes),
        }
        fields: dict[str, Any] = dict(cached(user_cache(), key, build))
        for names in _NAMES.values():
            if names in fields:
                fields[names] = tuple(bytes(fields[names].tolist()).decode().split("\0"))
        return Examples(**fields)
