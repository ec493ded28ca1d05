"""Checks and messages that several sources share."""

from pathlib import Path

from fedaux_pl.errors import DataNotFoundError

EMBEDDED = "to run without any download use the embedded data: `configs/quickstart.yaml`"


def not_found(what: str, where: Path, remedy: str) -> DataNotFoundError:
    """Makes the error "<what> <where>. <remedy>; ..." for missing data, for the caller to raise."""
    return DataNotFoundError(f"{what} {where.absolute()}.\n{remedy}; {EMBEDDED}.")


def check_size(size: int) -> int:
    """Returns the size (height and width of images), or raises a ValueError below 1."""
    if size < 1:
        raise ValueError(f"size must be a positive number of pixels, but is {size}")
    return size


def expand(path: str | Path | None) -> Path | None:
    """The path with ``~`` replaced by the home folder; None stays None."""
    return None if path is None else Path(path).expanduser()
