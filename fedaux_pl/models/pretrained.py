"""Encoders of the transformers library, from a folder or from the hub, or newly drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaux_pl.errors import ConfigurationError

# Of these it is known that they take a mask of their caller's as it is, (N, 1, L or 1, L).
OWN_MASK = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


def is_folder(source: str | Path) -> bool:
    """Whether a source is a folder here, not a name on the hub.

    Raises:
        ConfigurationError: If it can only be a folder, but is not there.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return True
    if path.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") > 1:
        raise ConfigurationError(
            f"there is no folder of an encoder or a tokenizer at {path.absolute()}: correct the "
            "path, or give a name on the hub such as huawei-noah/TinyBERT_General_4L_312D"
        )
    return False


def read_config(source: str | Path, model_type: str | None = None) -> Any:
    """The configuration of an encoder.

    Args:
        source: A folder with a ``config.json``, or a name on the hub.
        model_type: What it is where its file does not say so, such as ``bert``.
    """
    from transformers import AutoConfig

    reader = AutoConfig if model_type is None else type(AutoConfig.for_model(model_type))
    return _load(reader.from_pretrained, source)


def make_config(values: Mapping[str, Any]) -> Any:
    """A configuration from values; ``model_type`` is ``bert`` unless they say otherwise."""
    from transformers import AutoConfig

    values = {"model_type": "bert", **values}
    try:
        default = AutoConfig.for_model(values["model_type"])
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"config: model_type={values['model_type']!r}: {reason}") from error
    known = vars(default).keys() | default.attribute_map.keys() | {"model_type"}
    if unknown := sorted(values.keys() - known):
        raise ValueError(
            f"config: a {values['model_type']} has no {', '.join(unknown)}; it has "
            f"{', '.join(sorted(key for key in known if not key.startswith('_')))}."
        )
    return AutoConfig.for_model(**values)


def check_encoder(config: Any) -> None:
    """Refuse what is no bidirectional encoder, the only kind with a state of a whole text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise ValueError(
            f"{config.model_type!r} is no encoder with masked-language modelling; choose one like "
            "bert, distilbert, roberta, albert or electra."
        )


def load_encoder(config: Any, source: str | Path | None) -> nn.Module:
    """The network without a pooling layer, in float32.

    Args:
        config: Its configuration.
        source: Where its weights are; None to draw them.
    """
    from transformers import AutoModel

    auto: Any = AutoModel  # parts of it have no types
    if source is None:
        model: nn.Module = auto.from_config(config, dtype=torch.float32)
    else:
        with _quiet():
            model = _load(auto.from_pretrained, source, config=config, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        # no feature goes through it, so that it would be averaged but never trained
        model.pooler = None  # type: ignore[assignment]
    return model.train()


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of an encoder, from a folder or from the hub."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer.from_pretrained, source)


def read_mask_id(source: str | Path) -> int | None:
    """The id of the token that stands for a hidden one, if the source's tokenizer has it."""
    found = load_tokenizer(source).mask_token_id
    return None if found is None else int(found)


def _load(loader: Any, source: str | Path, **options: Any) -> Any:
    """Calls a ``from_pretrained`` that touches the network only for names on the hub."""
    local = is_folder(source)
    where = str(Path(source).expanduser()) if local else str(source)
    try:
        return loader(where, local_files_only=local, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"{where} cannot be loaded by the transformers library ({reason}): give a folder with "
            "config.json, the weights and the tokenizer, or the name of a model on the hub"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a report of every weight that is missing or in excess, and without a progress bar.

    What a checkpoint lacks or has beside the encoder, pooling layer and heads, is not used here.
    """
    from transformers.utils import logging as library

    logging: Any = library  # parts of it have no types
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
