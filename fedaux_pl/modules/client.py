"""Local training of a client (FedAUX, Algorithm 2: theta_i <- train(theta_0 <- theta, D_i))."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import proximal_penalty
from fedaux_pl.modules.classifier_module import ClassifierModule, TrainedPart
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.state_dicts import copy_tensors

BatchNormMode = Literal["batch", "frozen"]


class ClientModule(ClassifierModule):
    """Train a classifier with cross-entropy and, optionally, a proximal term or a correction.

    With mu > 0 the loss has the additional term mu/2 |theta - theta_0|^2 (FedProx). The anchor
    theta_0 is the parameters at the start of the fit. With ``corrected`` the tensors of
    ``set_correction`` are added to the gradients (SCAFFOLD). Batches are (inputs, labels), training
    batches of a ``weighted`` module (inputs, labels, weights): the loss is the mean over the batch
    of weight times cross-entropy. Images are uint8, or floats in [0, 1]; others raise a ValueError.
    In training only the first batch of an epoch is checked; in a loop of your own call
    ``check_batch``. Logs ``train/loss``, ``val/loss``, ``val/accuracy``, ``test/loss`` and
    ``test/accuracy``.

    Args:
        model: The name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``. A module is not saved with the hyper-parameters: pass it again to
            ``load_from_checkpoint``.
        num_classes: C, the number of classes; by default that of a module's head, 10 for a name.
        mu: The strength of the proximal term, 0 for none.
        trained: ``full`` trains all parameters, ``head`` trains g only (linear evaluation).
        optimizer: The optimizer of the trained parameters.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.
        corrected: Whether a correction is added to the gradients; zero until it is set.
        label_smoothing: The probability that labels give to all classes alike, in [0, 1).
        batchnorm: ``batch`` normalizes by the statistics of each batch and updates the running
            ones; ``frozen`` normalizes by the running statistics of the start, which stay.
        weighted: Whether training batches have a third tensor, the weight of each sample.

    Examples:
        >>> import torch
        >>> from fedaux_pl import ClientModule
        >>> client = ClientModule("resnet8", num_classes=10, model_options={"width": 0.125})
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> labels = torch.tensor([0, 1, 2, 3])
        >>> optimizer = client.configure_optimizers()
        >>> client.training_step((images, labels), 0).backward()
        >>> optimizer.step()
        >>> client(images).shape
        torch.Size([4, 10])
    """

    option: ClassVar[str] = "local"

    def __init__(
        self,
        model: str | nn.Module = "resnet8",
        num_classes: int | None = None,
        mu: float = 0.0,
        trained: TrainedPart = "full",
        optimizer: OptimizerSettings = OptimizerSettings(),  # noqa: B008 - frozen
        model_options: dict[str, Any] | None = None,
        corrected: bool = False,
        label_smoothing: float = 0.0,
        batchnorm: BatchNormMode = "batch",
        weighted: bool = False,
    ) -> None:
        check_setting("mu", mu, isinstance(mu, int | float) and mu >= 0, "be at least 0")
        super().__init__(model, num_classes, trained, optimizer, model_options)
        self.mu = mu
        self.corrected = corrected
        self.label_smoothing = label_smoothing
        self.batchnorm = batchnorm
        self.weighted = weighted
        # set_anchor and set_correction write in place: captured steps (CUDA graphs) read these
        self.anchor: list[Tensor] = []
        self.corrections: list[Tensor] = []

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen BatchNorm keeps its statistics, its weights are trained."""
        super().train(mode)
        if self.batchnorm == "frozen":
            for layer in self.model.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self

    def start_from(self, state: Mapping[str, Tensor]) -> None:
        """Load the model's weights in place and set the anchor."""
        super().start_from(state)
        if self.mu > 0:  # under StageRunner
            self.set_anchor()

    def set_anchor(self) -> None:
        """Set theta_0 of the proximal term to the current parameters."""
        current = [parameter.detach() for parameter in self._trained_parameters().values()]
        if self.anchor:
            copy_tensors(self.anchor, current)
        else:
            self.anchor = [tensor.clone() for tensor in current]

    def set_correction(self, correction: Mapping[str, Tensor]) -> None:
        """Set the tensors that a ``corrected`` module adds to the gradients, by parameter name.

        Empty for zeros; entries of other names are ignored.
        """
        if not self.corrected:
            if correction:
                raise ValueError(
                    "this ClientModule has no correction: create it with corrected=True"
                )
            return
        trained = self._trained_parameters()
        for name in sorted(trained) if correction else ():
            if name not in correction:
                raise ValueError(
                    f"the correction has no entry for {name}: give one for every trained "
                    "parameter, or none at all"
                )
        if not self.corrections:
            self.corrections = [torch.zeros_like(p, requires_grad=False) for p in trained.values()]
        if correction:
            copy_tensors(self.corrections, [correction[key] for key in trained])
        else:
            torch._foreach_zero_(self.corrections)

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def on_train_start(self) -> None:
        """Set the anchor, unless the fit resumes from a checkpoint that has one."""
        super().on_train_start()
        if self.mu > 0 and not (self.anchor and self.trainer.global_step > 0):
            self.set_anchor()

    def check_batch(self, batch: Any) -> None:
        """Raise a ValueError unless a batch is (inputs, labels) or has weights, if needed."""
        super().check_batch(batch)
        if self.weighted and len(batch) < 3:
            raise ValueError(
                f"a training batch of a weighted module: got {len(batch)} entries; expected "
                "(inputs, labels, weights): add the weight of each sample"
            )

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Compute the cross-entropy of a batch plus proximal term and correction."""
        loss = self.data_loss(batch)
        if self.mu > 0:
            if not self.anchor:  # in a plain loop, at its first step
                self.set_anchor()
            parameters = self._trained_parameters().values()
            loss = loss + proximal_penalty(parameters, self.anchor, self.mu)
        if self.corrected:
            loss = loss + self._correction_term()
        self.log_training(loss, len(batch[1]))
        return loss

    def data_loss(self, batch: Sequence[Tensor]) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        x, labels = batch[:2]
        options: dict[str, Any] = {"label_smoothing": self.label_smoothing}
        if self.weighted:
            losses = F.cross_entropy(self.network(x), labels, reduction="none", **options)
            return (batch[2] * losses).mean()
        return F.cross_entropy(self.network(x), labels, **options)

    def _correction_term(self) -> Tensor:
        """Return <theta, c> - stop_gradient(<theta, c>): its gradient is c, its value 0.

        As a part of the loss it is scaled by a GradScaler and captured by a CUDA graph with it.
        """
        if not self.corrections:
            self.set_correction({})
        pairs = zip(self._trained_parameters().values(), self.corrections, strict=True)
        products = torch.stack([(theta * c).sum() for theta, c in pairs]).sum()
        return products - products.detach()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save theta_0 and the correction, so that a resumed fit has the same."""
        for name, tensors in (("anchor", self.anchor), ("corrections", self.corrections)):
            if tensors:
                checkpoint[name] = [tensor.cpu() for tensor in tensors]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore theta_0 and the correction."""
        for name in ("anchor", "corrections"):
            if name in checkpoint:
                setattr(self, name, [tensor.to(self.device) for tensor in checkpoint[name]])
