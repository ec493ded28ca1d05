"""Reads the seconds that rounds log, and measures what comes before and between them."""

from fedaux_pl.benchmark.measured_federation import MeasuredData, MeasuredFederation, RoundClock
from fedaux_pl.benchmark.summary import format_table, summarize

__all__ = ["MeasuredData", "MeasuredFederation", "RoundClock", "format_table", "summarize"]
