"""The version, readable without importing torch."""

__version__ = "0.8.0"
