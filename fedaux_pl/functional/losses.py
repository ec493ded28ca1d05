"""The losses: NT-Xent of SimCLR, distillation, FedProx's proximal term, weights of classes."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Compute the contrastive loss of SimCLR (Chen et al. 2020, eq. 1).

    It is the mean over the views i of N images, where j is the other view of the same image, of
    l(i, j) = -log( exp(sim(z_i, z_j) / tau) / sum_{k != i} exp(sim(z_i, z_k) / tau) ). Shapes do
    not depend on values and nothing synchronizes with the device, so that the loss can be
    captured in a CUDA graph. ``first`` and ``second`` are the projections of the two views, (N, d).

    Examples:
        >>> views = torch.eye(2)  # equal views of two images with orthogonal projections
        >>> nt_xent_loss(views, views, temperature=0.5)  # -log(e^2 / (e^2 + 2 e^0))
        tensor(0.2395)
    """
    views = F.normalize(torch.cat([first, second]), dim=1)
    similarities = views @ views.T / temperature
    columns = torch.arange(len(views), device=views.device)
    is_itself = columns[:, None] == columns
    similarities = similarities.masked_fill(is_itself, -torch.inf)
    partner = columns.roll(len(first))
    return F.cross_entropy(similarities, partner)


def distillation_loss(
    student_logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """Compute D_KL(targets, softmax(student_logits)) (FedAUX, eq. 1), the mean over the batch.

    With a temperature tau it is tau^2 D_KL(softmax(log(targets) / tau), softmax(logits / tau))
    (Hinton et al. 2015). ``targets`` are the teachers' probabilities, shape (N, C).

    Examples:
        >>> distillation_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # log 2
        tensor(0.6931)
    """
    if student_logits.shape != targets.shape or student_logits.ndim != 2:
        raise ValueError(
            f"student logits and targets: got {tuple(student_logits.shape)} and "
            f"{tuple(targets.shape)}; expected (samples, classes) of both"
        )
    if temperature == 1:
        return F.kl_div(student_logits.log_softmax(dim=-1), targets, reduction="batchmean")
    targets = (targets.log() / temperature).softmax(dim=-1)
    logarithms = (student_logits / temperature).log_softmax(dim=-1)
    divergences = F.kl_div(logarithms, targets, reduction="none").sum(dim=-1)
    return (temperature**2 * divergences).mean()


def proximal_penalty(params: Iterable[Tensor], anchor: Iterable[Tensor], mu: float) -> Tensor:
    """Compute FedProx's mu/2 |theta - theta_0|^2 (Li et al. 2020), summed over all tensors.

    The anchor theta_0 is the server's model at the start of the round; it gets no gradient.

    Examples:
        >>> proximal_penalty([torch.tensor([3.0, 4.0])], [torch.zeros(2)], mu=0.1)  # 0.05 * 25
        tensor(1.2500)
    """
    pairs = zip(params, anchor, strict=True)
    squares = [(param - origin.detach()).square().sum() for param, origin in pairs]
    return 0.5 * mu * torch.stack(squares).sum()


def balanced_weights(labels: Tensor) -> Tensor:
    """Weight samples so that every class that occurs has the same total weight, and the mean is 1.

    A sample of class c has the weight N / (K n_c): N samples, K classes that occur, n_c of class c.
    ``labels`` are integers of shape (N,).

    Examples:
        >>> balanced_weights(torch.tensor([7, 7, 7, 2]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    counts = torch.bincount(labels)
    occurring = int((counts > 0).sum())
    return (len(labels) / (occurring * counts[labels].double())).float()
