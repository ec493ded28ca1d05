"""TinyBERT: Jiao et al., "TinyBERT: Distilling BERT for Natural Language Understanding", 2020."""

from pathlib import Path
from typing import Any, ClassVar

from fedaux_pl.models.encoder import Encoder, Pooling
from fedaux_pl.models.registry import register


@register("tinybert")
class TinyBERT(Encoder):
    """TinyBERT with 4 layers of width 312, general distillation, as in FedAUX's text experiments.

    Args:
        num_classes: Number of outputs, at least 1.
        source: The name of the model on the hub, or a folder that it was saved to.
        pooling: See ``Encoder``.
        pretrained: Whether to load its weights; random weights need neither network nor folder.
        length: See ``Encoder``.

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
            mask_id=103,  # of BERT's English vocabulary, which TinyBERT shares
            length=length,
        )
