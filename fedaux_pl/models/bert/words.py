"""The gradient of an encoder's word vectors."""

import torch
from torch import Tensor

from fedaux_pl.models.batch_norm import on_device_of
from fedaux_pl.models.bert.steps import WARPS, power

MOST_RANKED = 2**13  # tokens of which each is compared with all others


def word_gradient(dsum: Tensor, ids: Tensor, words: int, padding: int) -> Tensor:
    """The gradient of word vectors (words, width), from that of each token; of padding it is 0."""
    from fedaux_pl.models import kernels

    tokens, width = dsum.shape
    if tokens > MOST_RANKED:
        found: Tensor = torch.ops.aten.embedding_dense_backward(
            dsum, ids.flatten(), words, padding, False
        )
        return found
    ranked, order = (torch.empty(tokens, dtype=torch.int32, device=ids.device) for _ in range(2))
    sums = torch.zeros(words, width, device=ids.device)
    with on_device_of(ids):
        kernels.rank_kernel[(-(-tokens // 8),)](
            ids, ranked, order, tokens, BLOCK_T=8, BLOCK_O=512, num_warps=WARPS
        )
        kernels.word_sums_kernel[(tokens,)](
            dsum,
            ranked,
            order,
            sums,
            words,
            tokens,
            padding,
            WIDTH=width,
            BLOCK_R=16,
            BLOCK_W=power(width),
            num_warps=WARPS,
        )
    return sums
