"""The paper's figures and tables that need no sweep, one module each.

To add one, write a function that returns the items of its report, and name it in
``analysis_file.ANALYSES``: its keyword arguments are the options of its files.
"""

from fedaux_pl.reports.analyses.analysis_file import ANALYSES, run

__all__ = ["ANALYSES", "run"]
