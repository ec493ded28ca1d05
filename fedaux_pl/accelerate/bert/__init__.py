"""BERT under autocast with fused kernels: the fast versions of the text encoders.

Matrix products are PyTorch's. All operations between two of them, such as dropout, residual sum and
LayerNorm, are one Triton kernel.
"""
