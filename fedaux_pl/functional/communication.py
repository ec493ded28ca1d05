"""What travels between server and clients, in bytes (FedAUX, appendix D)."""

from collections.abc import Mapping

from torch import Tensor


def state_bytes(state: Mapping[str, Tensor]) -> int:
    """The bytes of a model's tensors as they are sent."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def feature_bytes(num_samples: int, feature_dim: int, bytes_each: int = 4) -> int:
    """The bytes of feature vectors: how the negatives D^- reach a client."""
    return num_samples * feature_dim * bytes_each
