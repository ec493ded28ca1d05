"""Measures the rounds of a federation stage by stage."""

from fedaux_pl.benchmark.measured_federation import MeasuredData, MeasuredFederation, RoundClock
from fedaux_pl.benchmark.summary import format_table, summarize

__all__ = ["MeasuredData", "MeasuredFederation", "RoundClock", "format_table", "summarize"]
