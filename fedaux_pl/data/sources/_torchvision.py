"""Opens torchvision's data sets, with error messages that say what to change."""

import tarfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fedaux_pl.data.input_checks import not_found

# raised by torchvision for missing or damaged files, and by the network (URLError is an OSError)
_OPEN_ERRORS = (RuntimeError, OSError, EOFError, HTTPException, tarfile.TarError)


def open_dataset(
    dataset: Callable[..., Any], root: Path, content: str, download: bool, **options: Any
) -> Any:
    """Constructs ``dataset(root, download=download, **options)``, a data set of torchvision.

    Args:
        dataset: The class.
        root: The folder of the data set.
        content: What the folder must hold, for messages.
        download: Whether to download missing files.
        **options: The part of the data set, such as ``split="test"``.

    Raises:
        DataNotFoundError: If files are missing or damaged, or the download fails.
    """
    try:
        return dataset(root, download=download, **options)
    except _OPEN_ERRORS as error:
        name = dataset.__name__
        if download:
            what = f"{name} could not be downloaded ({error}) to"
            remedy = f"Check the network, or put {content} there by hand"
        else:
            # torchvision's RuntimeError adds nothing to this message; other errors do
            reason = "" if isinstance(error, RuntimeError) else f" ({error})"
            what = f"{name} was not found{reason}: {content}, complete and undamaged, should be in"
            remedy = "Set `download: true`, or put the files there"
        raise not_found(what, root, remedy) from error
