"""Checks that several scorers share."""

from torch import Tensor

from fedaux_pl.errors import PrivacyError


def require_labels(labels: Tensor | None) -> Tensor:
    """Return the labels; raise a ValueError if there are none."""
    if labels is None:
        raise ValueError("the scorer needs the labels of the client")
    return labels


def check_converged(gradient_norm: float, tolerance: float) -> None:
    """Raise a PrivacyError if the sensitivity does not cover a fit that ended at this gradient."""
    if not gradient_norm <= tolerance:  # NaN too
        raise PrivacyError(
            f"the fit stopped at a gradient norm of {gradient_norm:.3g}, above the tolerance of "
            f"{tolerance:.3g} that its sensitivity assumes: raise its regularization or its "
            "tolerance, and fit again"
        )
