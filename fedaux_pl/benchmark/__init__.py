"""What a machine gives: a federation's rounds, measured stage by stage."""

from fedaux_pl.benchmark.clock import RoundClock
from fedaux_pl.benchmark.measured import MeasuredData, MeasuredFederation
from fedaux_pl.benchmark.report import summarize
from fedaux_pl.benchmark.table import table

__all__ = ["MeasuredData", "MeasuredFederation", "RoundClock", "summarize", "table"]
