"""Auxiliary samples that are also private training samples.

The privacy guarantee of a release does not cover what the public data reveal about private data.
"""

import numpy as np

from fedaux_pl.data.fingerprints import record_digests
from fedaux_pl.data.input_checks import note
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.errors import DataError


def count_shared(private: Inputs, auxiliary: Inputs, key: bytes) -> int:
    """Count the auxiliary inputs that equal a private input, by their hashes with a secret key."""
    private_digests = record_digests(private, None, key)
    auxiliary_digests = record_digests(auxiliary, None, key)
    return int(np.isin(auxiliary_digests, private_digests).sum())


def check_shared(num_shared: int, num_auxiliary: int) -> None:
    """Print a note if auxiliary samples are private, and raise a DataError if most of them are."""
    if num_shared == 0:
        return
    are_private = "is also a private training sample"
    if num_shared > 1:
        are_private = "are also private training samples"
    finding = f"{num_shared} of {num_auxiliary} auxiliary samples {are_private}"
    if 2 * num_shared > num_auxiliary:
        raise DataError(
            f"{finding}, so the auxiliary data are not public: give data.auxiliary a source of "
            "other samples, or remove the shared samples from one of the two sources"
        )
    note(
        f"{finding}: h_0 and the scores then depend on private data beyond what the privacy "
        "guarantee covers; use other auxiliary data, or remove the shared samples"
    )
