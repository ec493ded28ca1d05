"""A module whose import fails."""

raise RuntimeError("no license for this module")
