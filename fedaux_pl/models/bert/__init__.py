"""BERTs of the transformers library under autocast, in few kernels.

``selection`` says which, ``forward`` and ``backward`` are the pass and the way back, and ``steps``,
``attention`` and ``words`` what they do between two products, a kernel each.
"""

from fedaux_pl.models.bert.selection import bert_states, is_fused

__all__ = ["bert_states", "is_fused"]
