"""The version, readable without importing torch."""

__version__ = "0.7.0"
