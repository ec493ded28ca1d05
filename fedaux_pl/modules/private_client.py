"""Local training of a client by DP-SGD (Abadi et al. 2016)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaux_pl.modules.client import ClientModule
from fedaux_pl.scoring.release import round_to_grid, secret_normal

_MARGIN = 1e-4  # of the norm of clipped gradients: more than the rounding errors of their sum
_CHUNK = 64  # samples whose gradients are in memory at once
_BLOCK = 2**14  # entries of a row whose squares a CPU adds in float32 within that margin


@dataclass(frozen=True)
class GradientNoise:
    """How the gradient of a batch is made private.

    Attributes:
        clip_norm: The largest norm of the gradient of a sample.
        multiplier: The standard deviation of the noise of their sum, relative to ``clip_norm``.
        batch_size: The expected number of samples of a batch, by which the sum is divided. Both are
            tensors where captured steps (CUDA graphs) read them.
        secret: Whether the noise comes from the operating system, not from PyTorch's generators.
    """

    clip_norm: float
    multiplier: float | Tensor
    batch_size: float | Tensor
    secret: bool = False

    def mean(self, total: Tensor) -> Tensor:
        """Return the sum of clipped gradients, shape (d,), with noise, by the batch size.

        With secret noise it is rounded to a grid first: the last digits of a sum tell its terms.
        """
        sigma = self.multiplier * self.clip_norm
        if not self.secret:
            return (total + sigma * torch.randn_like(total)) / self.batch_size
        noise = secret_normal(len(total)).to(total.device)
        noisy = round_to_grid(total.double() + sigma * noise, float(sigma))
        return (noisy / self.batch_size).to(total.dtype)


class PrivateClientModule(ClientModule):
    """A ``ClientModule`` whose gradients are those of DP-SGD.

    The gradient of each sample is clipped to a norm; their sum has Gaussian noise and is divided by
    the expected size of a batch. Batches are those of ``PoissonBatches``; ``set_noise`` comes
    before the first one. All else, such as Adam's moments and a proximal term, depends on the data
    through these gradients alone. A sample whose gradient is not finite counts as 0, so that no
    record can stop the training. A negative label pads a batch: it counts as 0, too.
    ``train/loss`` has no guarantee.

    Examples:
        >>> options = {"width": 0.125, "norm": "group"}
        >>> client = PrivateClientModule("resnet8", num_classes=10, model_options=options)
        >>> client.set_noise(GradientNoise(clip_norm=1.0, multiplier=0.8, batch_size=4))
        >>> images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
        >>> client.training_step((images, torch.arange(5)), 0).backward()
    """

    noise: GradientNoise | None = None
    noise_numbers: Tensor

    def set_noise(self, noise: GradientNoise) -> None:
        """Set the noise of the following batches, in place: captured steps read its numbers."""
        if noise.secret:  # steps are not captured, and its grid needs 64 bits
            self.noise = noise
            return
        numbers = torch.tensor([noise.multiplier, noise.batch_size], device=self.device)
        if hasattr(self, "noise_numbers"):
            self.noise_numbers.copy_(numbers)
        else:
            self.register_buffer("noise_numbers", numbers, persistent=False)
        multiplier, batch_size = self.noise_numbers
        self.noise = replace(noise, multiplier=multiplier, batch_size=batch_size)

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
                scales = clip_scales(gradients, noise.clip_norm)
                total += torch.cat([self.weighted_sum(rows, scales) for rows in gradients])
                loss += losses.nan_to_num(0.0, 0.0, 0.0).sum()
        product = (flat * noise.mean(total)).sum()
        return loss / noise.batch_size + product - product.detach()

    def sample_gradients(self, x: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of each sample, shapes (N, size), and its loss, shape (N,)."""
        trained = self.sample_parameters()
        network = self.network

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(network, parameters, (image[None],))
            target = label.clamp(min=0)[None]
            value = F.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
            return value * (label >= 0)

        each = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        # vmap has no rules for fused attention
        with self.sample_precision(x), sdpa_kernel(SDPBackend.MATH):
            gradients, losses = each(trained, x, labels)
        return [gradients[key].flatten(start_dim=1) for key in trained], losses

    def sample_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of which samples have gradients, by name."""
        return {key: value.detach() for key, value in self._trained_parameters().items()}

    def sample_precision(self, x: Tensor) -> AbstractContextManager[Any]:
        """Return the context of the gradients of samples, float32 whatever the precision.

        ``vmap`` has no rules for a frozen BatchNorm in half precision.
        """
        return torch.autocast(x.device.type, enabled=False)

    def weighted_sum(self, rows: Tensor, scales: Tensor) -> Tensor:
        """Return the float32 sum of rows (N, size), each times its scale; 0 leaves out NaN."""
        is_used = scales > 0
        if not bool(is_used.all()):
            rows = rows.where(is_used[:, None], 0)
        # no matrix products: autocast and TF32 would round them to more than the bound
        return (scales[:, None] * rows).sum(dim=0)


def clip_scales(gradients: Sequence[Tensor], clip_norm: float) -> Tensor:
    """Return the factor of each sample, shape (N,), with which its norm is at most ``clip_norm``.

    ``gradients`` of each parameter have a row for each sample, in any precision. A sample whose
    norm is not finite has the factor 0. Norms stay below the bound by more than rounding errors.

    Examples:
        >>> weight = torch.tensor([[3.0, 4.0], [0.3, 0.0], [torch.inf, 0.0]])
        >>> clip_scales([weight, torch.zeros(3, 1)], clip_norm=1.0)
        tensor([0.2000, 1.0000, 0.0000])
    """
    norms = [_block_norms(rows) for rows in gradients]
    norm = torch.cat(norms).double().norm(dim=0).float()
    scales: Tensor = clip_norm * (1 - _MARGIN) / norm
    return scales.clamp(max=1.0).where(norm.isfinite(), 0)


def _block_norms(rows: Tensor) -> Tensor:
    """Return the norms of blocks of rows (N, size), shape (blocks, N).

    A CPU adds all squares of a row in a few sums, whose rounding errors grow with its length.
    """
    blocks = [rows] if rows.is_cuda else torch.split(rows, _BLOCK, dim=1)
    return torch.stack([torch.linalg.vector_norm(b, dim=1, dtype=torch.float32) for b in blocks])
