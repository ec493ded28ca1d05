"""The settings that identify a release. They are FROZEN.

A site pays once for a release and finds it again in its ledger by the text of these settings.
Caches of simulations find their releases in the same way, and simulated noise is drawn from a hash
of such a text. If the text changed, a site would have to pay for the same release a second time,
and a seed would no longer repeat its results. So never rename, reorder or remove an entry, and
never change the format of a value.
"""

from collections.abc import Mapping
from typing import Any

from fedaux_pl.scoring.calibration import Calibration
from fedaux_pl.scoring.feature_maps import FeatureMap
from fedaux_pl.scoring.scorers import Scorer

RELEASE_VERSION = 1
"""The version of the code that makes a release: scorers, feature maps, sensitivities and noise.

Raise it with every change of what is released. Stored releases of another version are then not used
any more.
"""


def plain_settings(option: Scorer | FeatureMap | Calibration) -> dict[str, Any]:
    """Return the name of the option's class, and its fields in the order of their definition.

    The class names and the fields of all scorers, feature maps and calibrations of this package are
    therefore frozen, too. A class of another package is named together with its module. Tensors
    that the server sends with a step are left out, because the key of a release holds their digest.
    """
    kind = type(option)
    name = kind.__name__
    if not kind.__module__.startswith("fedaux_pl."):
        name = f"{kind.__module__}.{kind.__qualname__}"
    sent = option.sent_shapes(0, 0) if isinstance(option, Scorer) else {}
    fields = {field: value for field, value in vars(option).items() if field not in sent}
    return {"class": name, **fields}


def release_settings(
    scorer: Scorer,
    feature_map: FeatureMap,
    norm_bound: float | str,
    epsilon: float | None,
    delta: float,
    mechanism: str,
) -> dict[str, Any]:
    """Return the options of a scoring that determine a release.

    The calibration is left out. A release can be scored with another calibration, whereas a new
    release would cost privacy again.
    """
    return {
        "scorer": plain_settings(scorer),
        "feature_map": plain_settings(feature_map),
        "norm_bound": norm_bound,
        "epsilon": epsilon,
        "delta": delta,
        "mechanism": mechanism,
        "version": RELEASE_VERSION,
    }


def secure_sum_settings(
    colluders: int, count_share: float | None, pins: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of secure sums."""
    settings = {
        "colluders": colluders,
        # Version 1.0 could pay for several attempts at a sum. A sum now has one attempt.
        "attempts": 1,
        "count_share": count_share,
        "pins": pins,
    }
    return {"sums": settings}


def step_settings(
    release: dict[str, Any], sums: dict[str, Any], share: float, is_summed: bool
) -> dict[str, Any]:
    """Return all settings of a step.

    Args:
        release: The result of ``release_settings``.
        sums: The result of ``secure_sum_settings``; used only if the step is summed.
        share: The step's share of the privacy budget.
        is_summed: Whether the server receives only the sum over clients.
    """
    settings: dict[str, Any] = {}
    # A release with the whole budget has no "part", because the first versions had no shares.
    if is_summed or share != 1:
        # "summands" is a leftover of version 0.8, which had such an option. It is 1 in every key.
        settings["part"] = {"share": share, "summands": 1}
    if is_summed:
        settings |= sums
    return settings | release


def simulated_noise_settings(
    seed: int,
    epsilon: float,
    delta: float,
    mechanism: str,
    sensitivity: float,
    share: float,
) -> list[object]:
    """Return the settings from which the noise of a simulated release is drawn."""
    settings: list[object] = [seed, epsilon, delta, mechanism, sensitivity]
    # A release with the whole budget adds nothing, because the first versions had no shares.
    if share != 1:
        # The 1 is the number of "summands", see ``step_settings``.
        settings += [share, 1]
    return settings


def simulated_sum_settings(seed: int, step: Mapping[str, Any]) -> list[object]:
    """Return the settings from which a client's noise in a simulated secure sum is drawn.

    ``step`` is the result of ``step_settings``.
    """
    # The 1 is the number of the attempt: version 1.0 could attempt a sum several times.
    return [seed, 1, step]
