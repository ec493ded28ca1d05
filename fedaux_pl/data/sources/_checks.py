"""Checks and messages that several sources share."""

from pathlib import Path

from fedaux_pl.errors import DataNotFoundError

EMBEDDED = "to run without any download use the embedded data: `configs/quickstart.yaml`"


def not_found(what: str, where: Path, remedy: str) -> DataNotFoundError:
    """The error for data that is not there.

    Args:
        what: What was looked for, at the beginning of a sentence.
        where: The file or folder, named with its absolute path in the message.
        remedy: What to change, at the beginning of a sentence, without a full stop.

    Returns:
        The error, to be raised.
    """
    return DataNotFoundError(f"{what} {where.absolute()}.\n{remedy}; {EMBEDDED}.")


def check_size(size: int) -> int:
    """Refuses a size that is no number of pixels.

    Args:
        size: Height and width of the images.

    Returns:
        The size.
    """
    if size < 1:
        raise ValueError(f"size must be a positive number of pixels, but is {size}")
    return size
