"""What travelled, in bytes (FedAUX, appendix D)."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedaux_pl.algorithms import Update
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import of_head
from fedaux_pl.scoring import ReleasedHead


def update_bytes(updates: Sequence[Update], head_only: bool) -> int:
    """What the selected clients send, which is also what they were sent.

    With a fixed h only g travels: h came with the preparation.
    """
    total = 0
    for update in updates:
        kept = {k: v for k, v in update.state.items() if not head_only or of_head(k)}
        total += state_bytes(kept)
    return total


def preparation_bytes(
    architectures: Sequence[str],
    h0: Mapping[str, Mapping[str, Tensor]],
    heads: Sequence[ReleasedHead],
    num_negatives: int,
) -> tuple[int, int]:
    """What the preparation sends: heads up; h_0, feature maps and features of negatives down.

    Args:
        architectures: That of each client.
        h0: The weights of h_0 for each architecture.
        heads: What the clients released.
        num_negatives: How many negatives clients need, as features that are mapped already; 0 for
            scorings that do without.
    """
    up = sum(state_bytes({"weight": head.weight}) for head in heads)
    down = sum(state_bytes(h0[name]) for name in architectures if name in h0)
    down += sum(state_bytes(head.public.tensors()) for head in heads)
    down += sum(feature_bytes(num_negatives, head.weight.numel()) for head in heads)
    return up, down
