"""Figures of a federation, for loggers and for PNG files.

Each takes arrays or tensors and returns a ``matplotlib.figure.Figure``. Pyplot, which holds every
figure until it is closed, is not used. Matplotlib is imported by the first figure: it is slow.
"""
