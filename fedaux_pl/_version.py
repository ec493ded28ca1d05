"""The version, readable without importing torch."""

__version__ = "2.0.0.dev0"
