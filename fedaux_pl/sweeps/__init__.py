"""Sweeps: many runs of ``fedaux-pl fit``, described by one file; they resume and share cells."""
