"""Load encoders of the transformers library from a folder or the hub, or with random weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaux_pl.errors import ConfigurationError, first_line

# Model types whose attention is known to use a boolean mask (N, 1, 1 or L, L) as it is.
TAKES_4D_MASK = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


def find_config(
    source: str | Path | None, values: Mapping[str, Any], model_type: str | None
) -> Any:
    """Read the configuration of an encoder, or make it from its values if there is no source.

    A ``config.json`` that names no model type is read as ``model_type``.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if source is None:
        values = {"model_type": "bert", **values}
        kind = values["model_type"]
        try:
            default = AutoConfig.for_model(kind)
        except ValueError as error:
            raise ValueError(f"config: model_type={kind!r}: {first_line(error)}") from error
        known = vars(default).keys() | default.attribute_map.keys() | {"model_type"}
        if unknown := sorted(values.keys() - known):
            names = ", ".join(sorted(key for key in known if not key.startswith("_")))
            raise ValueError(f"config: a {kind} has no {', '.join(unknown)}; it has {names}.")
        config = AutoConfig.for_model(**values)
    else:
        reader = AutoConfig if model_type is None else type(AutoConfig.for_model(model_type))
        config = _load(reader.from_pretrained, source)
    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise ValueError(
            f"model_type {config.model_type!r} is not an encoder for masked-language modeling; "
            "choose one such as bert, distilbert, roberta, albert or electra."
        )
    return config


def config_values(config: Any) -> dict[str, Any]:
    """Return the values from which ``find_config`` makes this configuration again."""
    about = {"transformers_version", "architectures", "id2label", "label2id"}  # not the encoder
    known = vars(type(config)()).keys() - about | {"model_type"}
    values: dict[str, Any] = config.to_dict()
    return {k: v for k, v in values.items() if k in known and not k.startswith("_")}


def load_encoder(config: Any, source: str | Path | None) -> nn.Module:
    """Load an encoder in float32, without its pooling layer; random weights if source is None."""
    from transformers import AutoModel

    auto: Any = AutoModel  # only partly typed
    if source is None:
        model: nn.Module = auto.from_config(config, dtype=torch.float32)
    else:
        with _quiet_loading():
            model = _load(auto.from_pretrained, source, config=config, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        # features do not use it: it would be averaged over clients but never trained
        model.pooler = None  # type: ignore[assignment]
    return model.train()


def load_tokenizer(source: str | Path) -> Any:
    """Load the tokenizer of an encoder from a folder or the hub."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer.from_pretrained, source)


def _load(loader: Any, source: str | Path, **options: Any) -> Any:
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
        return loader(where, local_files_only=is_local, **options)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{where} cannot be loaded by the transformers library ({first_line(error)}): set "
            "`source` (--model.model_options.source; of data: `tokenizer`) to a folder with "
            "config.json, the weights and the tokenizer, or to the name of a model on the hub"
        ) from error


@contextmanager
def _quiet_loading() -> Iterator[None]:
    # silences the progress bar and the report of missing and unexpected weights: these are only
    # the pooling layer and the heads, which are not used here
    from transformers.utils import logging as library

    logging: Any = library  # only partly typed
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
