"""Local training of a client by DP-SGD (Abadi et al. 2016)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.modules.client import ClientModule
from fedaux_pl.scoring.release import round_to_grid, secret_normal

_MARGIN = 1e-4  # of the norm of clipped gradients: more than the rounding errors of their sum
_CHUNK = 64  # samples whose gradients are in memory at once


@dataclass(frozen=True)
class GradientNoise:
    """How the gradient of a batch is made private.

    Attributes:
        clip_norm: The largest norm of the gradient of a sample.
        multiplier: The standard deviation of the noise of their sum, relative to ``clip_norm``.
        batch_size: The expected number of samples of a batch, by which the sum is divided.
        secret: Whether the noise comes from the operating system, not from PyTorch's generators.
    """

    clip_norm: float
    multiplier: float
    batch_size: float
    secret: bool = False

    def mean(self, total: Tensor) -> Tensor:
        """Return the sum of clipped gradients, shape (d,), with noise, by the batch size.

        With secret noise it is rounded to a grid first: the last digits of a sum tell its terms.
        """
        sigma = self.multiplier * self.clip_norm
        if not self.secret:
            return (total + sigma * torch.randn_like(total)) / self.batch_size
        noise = secret_normal(len(total)).to(total.device)
        noisy = round_to_grid(total.double() + sigma * noise, sigma)
        return (noisy / self.batch_size).to(total.dtype)


class PrivateClientModule(ClientModule):
    """A ``ClientModule`` whose gradients are those of DP-SGD.

    The gradient of each sample is clipped to a norm; their sum has Gaussian noise and is divided by
    the expected size of a batch. Batches are those of ``PoissonBatches``; ``set_noise`` comes
    before the first one. All else, such as Adam's moments and a proximal term, depends on the data
    through these gradients alone. A sample whose gradient is not finite counts as 0, so that no
    record can stop the training. ``train/loss`` has no guarantee.

    Examples:
        >>> options = {"width": 0.125, "norm": "group"}
        >>> client = PrivateClientModule("resnet8", num_classes=10, model_options=options)
        >>> client.set_noise(GradientNoise(clip_norm=1.0, multiplier=0.8, batch_size=4))
        >>> images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
        >>> client.training_step((images, torch.arange(5)), 0).backward()
    """

    noise: GradientNoise | None = None

    def set_noise(self, noise: GradientNoise) -> None:
        """Set the noise of the following batches."""
        self.noise = noise

    def data_loss(self, batch: Sequence[Tensor]) -> Tensor:
        """Return the mean loss; its gradient is the private one.

        For a gradient g it is loss + <theta, g> - <theta, g>, of which the loss and the last term
        have no gradient.
        """
        noise = self.noise
        if noise is None:
            raise ValueError("this PrivateClientModule has no noise: call set_noise before it")
        trained = self._trained_parameters()
        flat = torch.cat([parameter.flatten() for parameter in trained.values()])
        total = torch.zeros_like(flat, requires_grad=False)
        loss = total.new_zeros(())
        for x, labels in zip(*(torch.split(part, _CHUNK) for part in batch[:2]), strict=True):
            if len(labels):
                gradients, losses = self.sample_gradients(x, labels)
                total += clipped_sum(gradients, noise.clip_norm)
                loss += losses.nan_to_num(0.0, 0.0, 0.0).sum()
        product = (flat * noise.mean(total)).sum()
        return loss / noise.batch_size + product - product.detach()

    def sample_gradients(self, x: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of each sample, shapes (N, size), and its loss, shape (N,).

        They are computed in float32, whatever the precision.
        """
        trained = {key: value.detach() for key, value in self._trained_parameters().items()}

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(self.model, parameters, (image[None],))
            return F.cross_entropy(logits, label[None], label_smoothing=self.label_smoothing)

        each = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        # vmap has no rules for a frozen BatchNorm in half precision and for fused attention
        in_float32 = torch.autocast(x.device.type, enabled=False)
        with in_float32, sdpa_kernel(SDPBackend.MATH):
            gradients, losses = each(trained, x, labels)
        return [gradients[key].flatten(start_dim=1) for key in trained], losses


def clipped_sum(gradients: Sequence[Tensor], clip_norm: float) -> Tensor:
    """Return the sum of the gradients of samples, each scaled down to a norm if it is longer.

    ``gradients`` of each parameter have a row for each sample; the result joins all parameters. A
    sample whose norm is not finite counts as 0. Norms stay below the bound by more than rounding
    errors.

    Examples:
        >>> weight = torch.tensor([[3.0, 4.0], [0.3, 0.0], [torch.inf, 0.0]])
        >>> clipped_sum([weight, torch.zeros(3, 1)], clip_norm=1.0)
        tensor([0.8999, 0.7999, 0.0000])
    """
    norms = torch.stack([rows.norm(dim=1) for rows in gradients]).norm(dim=0)
    is_finite = norms.isfinite()
    if not bool(is_finite.all()):
        gradients = [rows.where(is_finite[:, None], 0) for rows in gradients]
    scales = (clip_norm * (1 - _MARGIN) / norms).clamp(max=1.0).where(is_finite, 0)
    # no matrix products: autocast and TF32 would round them to more than the bound
    return torch.cat([(scales[:, None] * rows).sum(dim=0) for rows in gradients])
