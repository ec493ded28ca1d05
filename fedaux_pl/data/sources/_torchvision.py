"""Calls torchvision's data set classes and explains what went wrong."""

import tarfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fedaux_pl.data.sources._checks import not_found

# what torchvision raises for missing or damaged files, and what the network can raise
# (URLError is an OSError)
FAILURES = (RuntimeError, OSError, EOFError, HTTPException, tarfile.TarError)


def open_dataset(
    name: str, make: Callable[[], Any], root: Path, content: str, download: bool
) -> Any:
    """Constructs a data set of torchvision.

    Args:
        name: What to call the data set in messages.
        make: Constructs it.
        root: The folder it was told to look in.
        content: What the folder should hold.
        download: Whether it was told to download.

    Returns:
        The data set of torchvision.
    """
    try:
        return make()
    except FAILURES as error:
        if download:
            raise not_found(
                f"{name} could not be downloaded ({error}) to",
                root,
                f"Check the network, or put {content} there by hand",
            ) from error
        # torchvision's own words say no more than this message; those of the system do
        reason = "" if isinstance(error, RuntimeError) else f" ({error})"
        raise not_found(
            f"{name} was not found{reason}: {content}, complete and undamaged, should be in",
            root,
            "Set `download: true`, or put the files there",
        ) from error
