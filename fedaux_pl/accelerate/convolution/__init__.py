"""Convolutional networks on CUDA: fused layers and the networks that use them."""
