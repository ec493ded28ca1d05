"""The traffic between server and clients in bytes (FedAUX, appendix D)."""

from collections.abc import Mapping

from torch import Tensor


def state_bytes(state: Mapping[str, Tensor]) -> int:
    """Return the size of a model's tensors.

    Examples:
        >>> import torch
        >>> state_bytes({"weight": torch.zeros(10, 5), "bias": torch.zeros(10)})
        240
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def feature_bytes(num_samples: int, feature_dim: int) -> int:
    """Return the size of the negatives D^-, which are sent to a client as float32 features."""
    return 4 * num_samples * feature_dim
