"""Text: any bidirectional encoder of the transformers library as f = g o h.

TinyBERT is Jiao et al., "TinyBERT: Distilling BERT for Natural Language Understanding", 2020.
Inputs are token ids (N, L), padded at the end; which positions are padding is seen from the ids.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.models.bert import bert_states, is_fused
from fedaux_pl.models.casting import call_cast
from fedaux_pl.models.checks import check_positive_int
from fedaux_pl.models.classifier import Classifier
from fedaux_pl.models.pooling import mean_states
from fedaux_pl.models.pretrained import (
    OWN_MASK,
    check_encoder,
    load_encoder,
    make_config,
    read_config,
    read_mask_id,
)
from fedaux_pl.models.registry import register

Pooling = Literal["mean", "cls"]

# Tokens of one pass where texts may be sorted by length. A GPU wants passes that take much longer
# than it takes to launch their kernels, a CPU such as stay in its caches.
_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 13}
# All but cuDNN's, which makes a plan for every new shape: tens of milliseconds, for texts of every
# length anew.
_KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@register("encoder")
class Encoder(Classifier):
    """An encoder of the transformers library with a linear head on one state for a text.

    Args:
        num_classes: Number of outputs, at least 1.
        source: A folder with ``config.json``, weights and tokenizer, which is read without the
            network, or a name on the hub.
        config: In place of a source, the values of a configuration whose weights are drawn; a
            ``bert`` unless ``model_type`` says otherwise, e.g. {vocab_size: 4000, hidden_size: 64}.
        pooling: What h(x) is: the ``mean`` of the last layer's states over the text, or the state
            of its first token, ``cls``. Masked-language modelling gives the states of all tokens
            a task, but not that of the first, so the mean is the better h_0.
        pretrained: Whether the weights of the source are used; otherwise they are drawn.
        pad_id: The id of the padding token, where the configuration has none.
        mask_id: The id of the token that hides another in masked-language modelling; by default
            that of the tokenizer in the source.
        length: L, to be refused here if it is more than the encoder has positions for.

    Attributes:
        pad_id: The id of the padding token.
        vocabulary: The number of token ids.
        max_length: The most tokens of a text.
    """

    inputs: ClassVar[Literal["images", "tokens"]] = "tokens"
    alike: ClassVar[bool] = False
    rows_at_once: ClassVar[int] = 1 << 17  # the more are sorted, the less padding is computed
    _model_type: ClassVar[str | None] = None  # where the file of the configuration may not say it

    def __init__(
        self,
        num_classes: int,
        *,
        source: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        pooling: Pooling = "mean",
        pretrained: bool = True,
        pad_id: int | None = None,
        mask_id: int | None = None,
        length: int | None = None,
    ) -> None:
        Encoder.check_options(source=source, config=config, pooling=pooling)
        settings = (
            make_config(config or {}) if source is None else read_config(source, self._model_type)
        )
        check_encoder(settings)
        super().__init__(num_classes, int(settings.hidden_size))
        given = settings.pad_token_id if pad_id is None else pad_id
        if given is None:
            raise ValueError("this encoder's configuration names no padding token: pass pad_id.")
        self.pad_id = int(given)
        self.encoder = load_encoder(settings, source if pretrained else None)
        self.pooling = pooling
        self.vocabulary = int(settings.vocab_size)
        self.max_length = _positions(self.encoder, settings)
        self._own_mask = settings.model_type in OWN_MASK
        embeddings = getattr(self.encoder, "embeddings", None)
        self._token_types = self._own_mask and hasattr(embeddings, "token_type_embeddings")
        self._source, self._mask_id = source, mask_id
        if length is not None:
            self._check_length(length)

    @classmethod
    def check_options(
        cls,
        *,
        source: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        pooling: Pooling = "mean",
        **others: Any,
    ) -> None:
        """Refuse options that contradict each other, without loading anything."""
        if (source is None) == (config is None):
            raise ValueError(
                "an encoder needs either source, a folder or a name on the hub, or config, the "
                f"values of a configuration, but got source={source!r} and config={config!r}."
            )
        if pooling not in get_args(Pooling):
            raise ValueError(f"pooling={pooling!r} is unknown; pass 'mean' or 'cls'.")
        for name in ("length", "pad_id", "mask_id"):
            if (value := others.get(name)) is not None:
                check_positive_int(name, value if name == "length" else value + 1)

    @property
    def mask_id(self) -> int | None:
        """The id of the token that hides another, where there is one."""
        if self._mask_id is None and self._source is not None:
            self._mask_id = read_mask_id(self._source)
        return self._mask_id

    @property
    def token_embedding(self) -> Tensor:
        """The vectors of all tokens, shape (vocabulary, e)."""
        weight: Tensor = self.encoder.get_input_embeddings().weight  # type: ignore[operator]
        return weight

    def check_inputs(self, x: Tensor) -> None:
        """Refuse what is no batch of token ids of this encoder's vocabulary and length."""
        if x.ndim != 2 or x.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"expected token ids of shape (N, L) and dtype int32 or int64, got "
                f"{tuple(x.shape)} of {x.dtype}; choose a data source for text."
            )
        self._check_length(x.shape[1])
        low, high = (int(value) for value in torch.aminmax(x))
        if low < 0 or high >= self.vocabulary:
            raise ValueError(
                f"token ids must lie in 0 ... {self.vocabulary - 1}, the encoder's vocabulary, but "
                f"run from {low} to {high}; give data and model the same tokenizer and source."
            )

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"texts of {length} tokens are longer than the {self.max_length} that this encoder "
                "has positions for; set max_length of the data to at most that."
            )

    def states(self, ids: Tensor, *, causal: bool = False) -> Tensor:
        """The states of the last layer, shape (N, L, feature_dim).

        Args:
            ids: Token ids (N, L).
            causal: Whether a token sees only those before it, as next-token prediction needs.
        """
        if is_fused(self.encoder, ids):
            return bert_states(self.encoder, ids, self.pad_id, causal=causal)
        mask = ids != self.pad_id
        config: Any = self.encoder.config
        if self._own_mask and config._attn_implementation in (None, "sdpa"):
            # As the attention takes it: the library would look into a mask of its own making,
            # for which the device has to be waited for.
            mask = mask[:, None, None, :]
            if causal:
                length = ids.shape[1]
                before = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
                mask = mask & before
        elif causal:
            raise ValueError(
                f"next-token prediction needs one of {', '.join(OWN_MASK)}, with sdpa attention."
            )
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._token_types:
            # All texts are of the one type. Said once for all of them its gradient is a sum over
            # texts, not one vector to which every token of a batch adds.
            inputs["token_type_ids"] = ids.new_zeros((1, ids.shape[1]))
        with _attention(ids.device):
            said = call_cast(self.encoder, ids.device, inputs)
        last: Tensor = said.last_hidden_state
        return last

    def features(self, x: Tensor) -> Tensor:
        """Map token ids to features; what is padding in all of a batch is not computed.

        Outside of training texts are sorted by length first, which saves about the share of the
        padding. In training on a GPU all L positions are computed: to know the longest text of a
        batch, every step would have to wait for the device.
        """
        if self.training or torch.is_grad_enabled():
            return self._pooled(self.trimmed(x))
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._pooled(x)
        self.check_inputs(x)
        lengths, order = self.lengths(x).clamp(min=1).sort(stable=True)
        known = lengths.cpu().numpy()  # the only wait: passes then follow each other without one
        most = _TOKENS.get(x.device.type, _TOKENS["cpu"])
        pooled = [
            self._pooled(x[order[start:stop], : int(known[stop - 1])])
            for start, stop in _parts(known, most)
        ]
        return torch.cat(pooled)[order.argsort()]

    def trimmed(self, ids: Tensor) -> Tensor:
        """A batch without what is padding in all of it, where looking at it costs no waiting."""
        if ids.device.type != "cpu":
            return ids
        self.check_inputs(ids)
        return self._without_padding(ids)

    def _without_padding(self, ids: Tensor) -> Tensor:
        return ids[:, : max(1, int(self.lengths(ids).max()))]

    def lengths(self, x: Tensor) -> Tensor:
        """Where the last token of each text is, counted from 1; 0 without any."""
        positions = torch.arange(1, x.shape[1] + 1, device=x.device)
        return ((x != self.pad_id) * positions).amax(dim=1)

    def _pooled(self, ids: Tensor) -> Tensor:
        states = self.states(ids)
        if self.pooling == "cls":
            return states[:, 0]
        return mean_states(states, ids, self.pad_id)


@register("tinybert")
class TinyBERT(Encoder):
    """TinyBERT with 4 layers of width 312, general distillation, as in FedAUX's text experiments.

    Args:
        num_classes: Number of outputs, at least 1.
        source: The hub's model, or a folder that it was saved to.
        pooling: See :class:`Encoder`.
        pretrained: Whether its weights are used; drawn ones need neither network nor folder.
        length: See :class:`Encoder`.
    """

    _model_type: ClassVar[str | None] = "bert"
    _VALUES: ClassVar[dict[str, Any]] = {
        "vocab_size": 30522,
        "hidden_size": 312,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "intermediate_size": 1200,
        "max_position_embeddings": 512,
    }

    def __init__(
        self,
        num_classes: int,
        *,
        source: str | Path = "huawei-noah/TinyBERT_General_4L_312D",
        pooling: Pooling = "mean",
        pretrained: bool = True,
        length: int | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            source=source if pretrained else None,
            config=None if pretrained else self._VALUES,
            pooling=pooling,
            pretrained=pretrained,
            mask_id=103,  # of BERT's English vocabulary, which TinyBERT shares
            length=length,
        )

    @classmethod
    def check_options(cls, *, source: str | Path | None = "hub", **others: Any) -> None:
        """Refuse options that contradict each other, without loading anything."""
        super().check_options(source=source, **others)


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """Within it attention is computed by kernels that are at once ready for every shape."""
    return sdpa_kernel(_KERNELS) if device.type == "cuda" else nullcontext()


def _parts(lengths: npt.NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Cuts texts that are sorted by length into parts, each padded to the longest of it.

    Args:
        lengths: Of all texts, in ascending order.
        most: The tokens of a part, with the padding; a text that is longer is a part of its own.

    Yields:
        The first text of a part and the one after its last.
    """
    start = 0
    while start < len(lengths):
        stops = range(start + 1, len(lengths) + 1)
        first = start
        fitting = bisect_right(stops, most, key=lambda stop: (stop - first) * lengths[stop - 1])
        start += max(1, fitting)
        yield first, start


def _positions(encoder: nn.Module, config: Any) -> int:
    """How many tokens an encoder has positions for."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return 1 << 30  # positions are relative to each other
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    skipped = getattr(table, "padding_idx", None)  # RoBERTa counts from the padding's on
    return int(positions) - (0 if skipped is None else skipped + 1)
