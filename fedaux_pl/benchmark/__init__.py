"""Measures the rounds of a federation stage by stage."""

from fedaux_pl.benchmark.measured_federation import MeasuredData, MeasuredFederation
from fedaux_pl.benchmark.round_clock import RoundClock
from fedaux_pl.benchmark.summary import summarize
from fedaux_pl.benchmark.table import format_table

__all__ = ["MeasuredData", "MeasuredFederation", "RoundClock", "format_table", "summarize"]
