"""BERT under autocast: all operations between two matrix products are one Triton kernel."""
