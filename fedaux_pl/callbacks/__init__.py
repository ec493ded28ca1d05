"""Callbacks that watch a federation: its progress and its figures."""
