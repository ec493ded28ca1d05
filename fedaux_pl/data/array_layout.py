"""The layout of arrays of images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.errors import DataError


def channels_first(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Turns images of shape (N, C, H, W), (N, H, W, C) or (N, H, W) into (N, C, H, W).

    Channels are last if the last dimension is 1 or 3 and the second is neither.

    Args:
        array: The images.
        what: The array, for the message.

    Raises:
        DataError: For another shape, or without images.

    Example:
        >>> import numpy as np
        >>> channels_first(np.zeros((5, 8, 8, 3)), "images").shape
        (5, 3, 8, 8)
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{what} must have the shape (N, C, H, W) with 1 to 4 channels, (N, H, W, C) with 1 or "
            f"3, or (N, H, W), but has {array.shape}"
        )
    if array.size == 0:
        raise DataError(f"{what} holds no images: its shape is {array.shape}")
    return np.ascontiguousarray(array)
