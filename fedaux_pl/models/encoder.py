"""Text classifiers: a bidirectional encoder from the transformers library with a linear head.

Inputs are token ids (N, L) with padding at the end; the padding mask is derived from the ids.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.models.classifier import Classifier, check_int
from fedaux_pl.models.registry import register

Pooling = Literal["mean", "cls"]

# Model types whose attention is known to use a boolean mask (N, 1, 1 or L, L) as it is.
TAKES_4D_MASK = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")

# Inference runs texts, sorted by length, in parts of at most this many tokens, padding included.
# A GPU needs large parts, so that computing one takes longer than launching its kernels; on a CPU
# the activations of a part should fit into the caches. Other devices use the CPU's value.
TOKENS_PER_PASS = {"cuda": 1 << 17, "cpu": 1 << 13}


@register("encoder")
class Encoder(Classifier):
    """An encoder from the transformers library with a linear head on one vector for each text.

    Args:
        num_classes: Number of outputs, at least 1.
        source: A folder with ``config.json``, weights and tokenizer, which is read without the
            network, or a name on the hub.
        config: In place of a source, the configuration of an encoder with random weights, such as
            {vocab_size: 4000, hidden_size: 64}; ``model_type`` is ``bert`` by default.
        pooling: h(x) is the ``mean`` of the last layer's hidden states over the tokens, or the
            hidden state of the first token, ``cls``. Masked-language modeling trains the states of
            all tokens but the first, so the mean is the better h_0.
        pretrained: Whether to load the weights of the source; otherwise they are random.
        pad_id: The id of the padding token, if the configuration has none.
        mask_id: The id of the mask token of masked-language modeling; by default that of the
            source's tokenizer.
        length: L, the length of the inputs, if it is to be checked against ``max_length`` at once.

    Examples:
        >>> import torch
        >>> sizes = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 16}
        >>> layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = Encoder(num_classes=3, config={**sizes, **layers}).eval()
        >>> ids = torch.tensor([[2, 17, 31, 3], [2, 40, 3, 0]])  # 0 is padding
        >>> model.features(ids).shape, model(ids).shape
        (torch.Size([2, 8]), torch.Size([2, 3]))
    """

    inputs: ClassVar[Literal["images", "tokens"]] = "tokens"
    fixed_size_inputs: ClassVar[bool] = False
    _model_type: ClassVar[str | None] = None  # used where config.json has no model_type

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
        check_encoder(source, config, pooling)
        settings = find_config(source, {"model_type": "bert", **(config or {})}, self._model_type)
        _check_text(settings)
        super().__init__(num_classes, int(settings.hidden_size))
        pad_id = settings.pad_token_id if pad_id is None else pad_id
        if pad_id is None:
            raise ValueError("this encoder's configuration names no padding token: pass pad_id.")
        self.pad_id = int(pad_id)
        self.encoder, self.origin = load_encoder(settings, source if pretrained else None)
        self.pooling = pooling
        self.vocabulary = int(settings.vocab_size)
        self.max_length = _count_positions(self.encoder, settings)  # of the tokens of a text
        self._takes_4d_mask = settings.model_type in TAKES_4D_MASK
        embeddings = getattr(self.encoder, "embeddings", None)
        self._has_token_types = self._takes_4d_mask and hasattr(embeddings, "token_type_embeddings")
        self._source = source
        self._mask_id = mask_id
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
        """Raise the constructor's errors for wrong options, without loading anything."""
        check_encoder(source, config, pooling)
        for name, minimum in (("length", 1), ("pad_id", 0), ("mask_id", 0)):
            value = others.get(name)
            if value is not None:
                check_int(name, value, minimum)

    def recipe(self) -> dict[str, Any]:
        """Return the options that create this encoder elsewhere, without its source."""
        options = {
            "config": config_values(self.encoder.config),
            "pooling": self.pooling,
            "pad_id": self.pad_id,
            "pretrained": False,
        }
        return {"name": "encoder", "options": options}

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token; None if the tokenizer has none."""
        if self._mask_id is None and self._source is not None:
            self._mask_id = load_tokenizer(self._source).mask_token_id
        return self._mask_id

    @property
    def token_embedding(self) -> Tensor:
        """The embedding table, shape (vocabulary, embedding dimension)."""
        weight: Tensor = self.encoder.get_input_embeddings().weight  # type: ignore[operator]
        return weight

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError for inputs that are not token ids of this vocabulary and length."""
        if x.ndim != 2 or x.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"expected token ids of shape (N, L) and dtype int32 or int64, got "
                f"{tuple(x.shape)} of {x.dtype}; choose a data source for text."
            )
        self._check_length(x.shape[1])
        low, high = map(int, torch.aminmax(x))
        if low < 0 or high >= self.vocabulary:
            raise ValueError(
                f"token ids: got {low} to {high}; expected 0 ... {self.vocabulary - 1}, the "
                "encoder's vocabulary: give data and model the same tokenizer and source"
            )

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"texts of {length} tokens are longer than the {self.max_length} that this encoder "
                "has positions for; set max_length of the data to at most that."
            )

    def states(self, ids: Tensor, *, causal: bool = False) -> Tensor:
        """Compute the last layer's hidden states, shape (N, L, feature_dim), of token ids (N, L).

        With ``causal`` a token attends only to itself and earlier ones, for next-token prediction.
        """
        last: Tensor = self.encoder(**self.encoder_inputs(ids, causal=causal)).last_hidden_state
        return last

    def encoder_inputs(self, ids: Tensor, *, causal: bool = False) -> dict[str, Tensor]:
        """Return the arguments of ``self.encoder`` for ``states``."""
        mask = ids != self.pad_id
        config: Any = self.encoder.config
        if self._takes_4d_mask and config._attn_implementation in (None, "sdpa"):
            # The library uses a mask (N, 1, 1 or L, L) as it is. From a mask (N, L) it reads
            # values on the host, which synchronizes with the device.
            mask = mask[:, None, None, :]
            if causal:
                length = ids.shape[1]
                mask = mask & torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        elif causal:
            allowed = ", ".join(TAKES_4D_MASK)
            raise ValueError(f"next-token prediction needs one of {allowed}, with sdpa attention.")
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._has_token_types:
            # All tokens have type 0. With one row of types, broadcast over the texts, the gradient
            # of the type's embedding is one reduction over texts; with a row for each text, it
            # would be accumulated token by token.
            inputs["token_type_ids"] = ids.new_zeros((1, ids.shape[1]))
        return inputs

    def pool(self, states: Tensor, ids: Tensor) -> Tensor:
        """Pool hidden states (N, L, feature_dim) to (N, feature_dim); a mean of no tokens is 0."""
        if self.pooling == "cls":
            return states[:, 0]
        is_token = (ids != self.pad_id)[:, :, None].to(states.dtype)
        return (states * is_token).sum(dim=1) / is_token.sum(dim=1).clamp(min=1)

    def features(self, x: Tensor) -> Tensor:
        """Map token ids to features of shape (N, feature_dim).

        In evaluation without gradients, texts are sorted by length and run in parts, each trimmed
        to its longest text. Otherwise the batch is trimmed on the CPU only, see ``trimmed``.
        An exported graph, whose shapes cannot depend on values, keeps all padding.
        """
        if torch.compiler.is_exporting():
            return self._encode(x)
        if self.training or torch.is_grad_enabled():
            try:
                return self._encode(self.trimmed(x))
            except (IndexError, RuntimeError):  # not checked before: a step must not wait for a GPU
                self.check_inputs(x)
                raise
        self.check_inputs(x)
        lengths, order = self.lengths(x).clamp(min=1).sort(stable=True)
        known = lengths.cpu().numpy()  # synchronizes once for all parts
        max_tokens = TOKENS_PER_PASS.get(x.device.type, TOKENS_PER_PASS["cpu"])
        encoded = []
        for start, stop in _split_by_tokens(known, max_tokens):
            longest = int(known[stop - 1])
            encoded.append(self._encode(x[order[start:stop], :longest]))
        return torch.cat(encoded)[order.argsort()]

    def _encode(self, ids: Tensor) -> Tensor:
        return self.pool(self.states(ids), ids)

    def trimmed(self, ids: Tensor) -> Tensor:
        """Cut off trailing padding of all texts; on the CPU only, as others would synchronize."""
        if ids.device.type != "cpu":
            return ids
        return ids[:, : max(1, int(self.lengths(ids).max()))]

    def lengths(self, x: Tensor) -> Tensor:
        """Return the position of the last token of each text, from 1; 0 if all is padding."""
        positions = torch.arange(1, x.shape[1] + 1, device=x.device)
        return ((x != self.pad_id) * positions).amax(dim=1)


@register("tinybert")
class TinyBERT(Encoder):
    """TinyBERT with 4 layers of width 312, general distillation, as in FedAUX's text experiments.

    Jiao et al., "TinyBERT: Distilling BERT for Natural Language Understanding", 2020. The arguments
    are those of ``Encoder``; random weights need neither network nor folder.

    Examples:
        >>> model = TinyBERT(num_classes=4, pretrained=False)
        >>> model.feature_dim, model.vocabulary, model.max_length
        (312, 30522, 512)
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
            mask_id=103,  # that of BERT's English vocabulary, which TinyBERT shares
            length=length,
        )


def _split_by_tokens(lengths: npt.NDArray[np.int64], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of parts with at most ``max_tokens`` tokens, or with one text.

    The lengths are in ascending order; padding counts.
    """
    start = 0
    while start < len(lengths):
        tokens = np.arange(1, len(lengths) - start + 1) * lengths[start:]  # of so many texts
        stop = start + max(1, int((tokens <= max_tokens).sum()))
        yield start, stop
        start = stop


def _count_positions(encoder: nn.Module, config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return 1 << 30  # relative positions: any length
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding_index = getattr(table, "padding_idx", None)  # RoBERTa's positions start after it
    return int(positions) - (0 if padding_index is None else padding_index + 1)


def check_encoder(
    source: str | Path | None, config: Mapping[str, Any] | None, pooling: str
) -> None:
    """Raise a ValueError unless either source or config is given, and the pooling is known."""
    if (source is None) == (config is None):
        raise ValueError(
            "an encoder needs either source, a folder or a name on the hub, or config, the "
            f"values of a configuration, but got source={source!r} and config={config!r}."
        )
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling={pooling!r} is unknown; pass 'mean' or 'cls'.")


def find_config(
    source: str | Path | None,
    values: Mapping[str, Any],
    model_type: str | None = None,
) -> Any:
    """Read the configuration of an encoder, or make it from its values if there is no source.

    A ``config.json`` that names no model type is read as ``model_type``.
    """
    from transformers import AutoConfig

    if source is None:
        kind = values["model_type"]
        try:
            default = AutoConfig.for_model(kind)
        except ValueError as error:
            raise ValueError(f"config: model_type={kind!r}: {first_line(error)}") from error
        names = vars(default).keys() | default.attribute_map.keys() | {"model_type"}
        # private ones can name code on the hub, as that of an attention
        known = sorted(key for key in names if not key.startswith("_"))
        unknown = sorted(values.keys() - set(known))
        if unknown:
            problem = f"config: a {kind} has no {', '.join(unknown)}"
            raise ValueError(f"{problem}; it has {', '.join(known)}.")
        return AutoConfig.for_model(**values)
    reader = AutoConfig if model_type is None else type(AutoConfig.for_model(model_type))
    return load_from(reader.from_pretrained, source)


def _check_text(config: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise ValueError(
            f"model_type {config.model_type!r} is not an encoder for masked-language modeling; "
            "choose one such as bert, distilbert, roberta, albert or electra."
        )


def config_values(config: Any) -> dict[str, Any]:
    """Return the values from which ``find_config`` makes this configuration again."""
    about = {"transformers_version", "architectures", "id2label", "label2id"}  # not the encoder
    known = vars(type(config)()).keys() - about | {"model_type"}
    values: dict[str, Any] = config.to_dict()
    return {k: v for k, v in values.items() if k in known and not k.startswith("_")}


def load_encoder(config: Any, source: str | Path | None) -> tuple[nn.Module, str]:
    """Load an encoder in float32, without its pooling layer, and say where its weights are from.

    Weights are random if source is None. A ConfigurationError names weights that a source lacks.
    """
    import transformers

    library: Any = transformers  # only partly typed
    if source is None:
        model: nn.Module = library.AutoModel.from_config(config, dtype=torch.float32)
        origin = "random weights"
    else:
        # without the progress bar and the report of missing and unexpected weights
        logging = library.utils.logging
        verbosity = logging.get_verbosity()
        shows_bars = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            load = library.AutoModel.from_pretrained
            options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
            model, report = load_from(load, source, **options)
        finally:
            logging.set_verbosity(verbosity)
            if shows_bars:
                logging.enable_progress_bar()
        missing = sorted(k for k in report["missing_keys"] if not k.startswith("pooler."))
        if missing:
            raise ConfigurationError(
                f"{source} lacks {len(missing)} weights of a {config.model_type}, such as "
                f"{missing[0]}: give a folder whose weights belong to its config.json"
            )
        origin = f"the weights of {source}"
        left_out = sorted(report["unexpected_keys"])
        if left_out:
            origin += f"; {len(left_out)} are left out, such as {', '.join(left_out[:2])}"
    pooler = getattr(model, "pooler", None)
    if pooler is not None and any(True for _ in pooler.parameters()):
        # features do not use it: it would be averaged over clients but never trained
        model.pooler = None  # type: ignore[assignment]
    return model.train(), origin


def load_tokenizer(source: str | Path) -> Any:
    """Load the tokenizer of an encoder from a folder or the hub.

    A ``config.json`` that names no model type, as TinyBERT's, is read as BERT's.
    """
    from transformers import AutoTokenizer, BertConfig

    try:
        return load_from(AutoTokenizer.from_pretrained, source)
    except ConfigurationError:
        try:
            values, _ = load_from(BertConfig.get_config_dict, source)
        except ConfigurationError:  # there is no config.json
            values = {"model_type": None}
        if "model_type" in values:
            raise
    return load_from(AutoTokenizer.from_pretrained, source, config=BertConfig())


def load_from(loader: Any, source: str | Path, **options: Any) -> Any:
    """Call a ``from_pretrained`` that uses the network only for names on the hub."""
    path = Path(source).expanduser()
    is_local = path.is_dir()
    looks_local = path.is_absolute() or str(source).startswith((".", "~"))
    if not is_local and (looks_local or str(source).count("/") > 1):
        raise ConfigurationError(
            f"there is no folder of an encoder or a tokenizer at {path.absolute()}: correct the "
            "path, or give a name on the hub, such as huawei-noah/TinyBERT_General_4L_312D"
        )
    where = str(path if is_local else source)
    try:
        # without code of the folder or the hub, and without a question whether to run it
        return loader(where, local_files_only=is_local, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{where} cannot be loaded by the transformers library ({first_line(error)}): set "
            "`source` (--model.model_options.source; of data: `tokenizer`) to a folder with "
            "config.json, the weights and the tokenizer, or to the name of a model on the hub"
        ) from error
