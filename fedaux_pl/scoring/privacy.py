"""The user's options of privacy: how much noise a release gets, and what it then costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.scoring import frozen_settings
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.noise import add_secret_noise, add_simulated_noise

_ROUNDING_MARGIN = 1 + 1e-8
"""Enlarges the noise of a share by more than the rounding errors of composing all shares."""


@dataclass(frozen=True)
class SecureSums:
    """The options of secure sums, in which the server sees only the sum of the clients' vectors.

    The vectors are class statistics. Each client adds a part of the noise of the sum.

    Attributes:
        colluders: t, at least 1: how many clients may reveal their noise and masks to the server,
            or add no noise. A sum needs at least t + 2 clients.
        count_share: The share of the budget for the class counts of each client, which FedAUX needs
            in addition to the sum. null chooses it by the numbers of records of the clients. Real
            sites report these numbers too late, so that null means 0.1 there.
        pins: The public key of each site, as ``fedaux-pl sites pin`` prints it. Real sites need
            them, because the server could otherwise replace their keys by its own. A simulation
            needs none.

    Examples:
        >>> privacy = Privacy(epsilon=1.0, secure=SecureSums(colluders=2))
        >>> privacy.secure.least_clients
        4
    """

    colluders: int = 1
    count_share: float | None = None
    pins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_setting("colluders", self.colluders, self.colluders >= 1, "be at least 1")
        share = self.count_share
        is_valid = share is None or 0 < share < 1
        check_setting("count_share", share, is_valid, "lie strictly between 0 and 1")

    @property
    def least_clients(self) -> int:
        """The smallest number of clients that a sum can have."""
        return max(3, self.colluders + 2)


@dataclass(frozen=True)
class Privacy:
    """The privacy of everything that a client releases.

    Attributes:
        epsilon: Greater than 0; null for no noise and no guarantee.
        delta: Between 0 and 1, both excluded.
        mechanism: How the noise is calibrated: ``analytic``, or ``classical`` as in the paper,
            which needs more noise and an epsilon of at most 1.
        secret: false draws the noise from the seed of the run: this is a simulation, which can be
            repeated and protects nothing. true draws the noise from the operating system, as a
            deployment must. Every run in one process then costs (epsilon, delta) again, whereas
            real sites release once and add up what they spend.
        secure: The options of secure sums, in which the server sees only the sum of the clients'
            class statistics; {} for their defaults. null sends the vector of each client to the
            server, and each vector then has all of the noise.

    Examples:
        >>> import torch
        >>> vector, release = Privacy(epsilon=0.5).release(torch.zeros(3), 0.02, noise_seed=0)
        >>> vector.shape, round(release.sigma, 4), release.is_private
        (torch.Size([3]), 0.1406, False)
    """

    epsilon: float | None = 0.1
    delta: float = 1e-5
    mechanism: Mechanism = "analytic"
    secret: bool = False
    secure: SecureSums | None = None

    def __post_init__(self) -> None:
        is_valid = self.secure is None or isinstance(self.secure, SecureSums)
        check_setting("secure", self.secure, is_valid, "be None or a SecureSums object")
        self.cost(sensitivity=1.0)  # raises if another option is invalid

    def cost(
        self,
        sensitivity: float,
        simulated: bool = False,
        share: float = 1.0,
        summands: int = 1,
    ) -> Release:
        """Return the noise that the release of a vector needs, and what the release then costs.

        Args:
            sensitivity: How far replacing one record can move the vector, in the l2-norm.
            simulated: Whether the noise comes from a seed.
            share: The release's share of mu^2, where mu is the budget in Gaussian differential
                privacy. Releases whose shares sum to 1 cost together as much as a single release
                with the whole budget.
            summands: The number of clients in a secure sum; 1 if the server sees each vector.

        Examples:
            >>> whole = Privacy(epsilon=1.0).cost(sensitivity=1.0)
            >>> half = Privacy(epsilon=1.0).cost(sensitivity=1.0, share=0.5)
            >>> round(half.sigma / whole.sigma, 3), round(half.epsilon, 3)
            (1.414, 0.684)
        """
        if self.epsilon is None:
            return Release(math.inf, 0.0, 0.0, 0.0, "none", summands=summands)
        epsilon = self.epsilon
        sigma = gaussian_sigma(epsilon, self.delta, sensitivity, self.mechanism)
        if share < 1:
            # mu = D / sigma, so sqrt(share) of mu needs 1 / sqrt(share) times the noise
            factor = _ROUNDING_MARGIN / math.sqrt(share)
            sigma *= factor
            sigma_at_1 = gaussian_sigma(epsilon, self.delta, 1.0, self.mechanism)
            epsilon = gaussian_epsilon(self.delta, factor * sigma_at_1)
        colluders = 1 if self.secure is None else self.secure.colluders
        if summands > 1:
            # the noise of the honest clients alone has the variance that the guarantee needs
            sigma /= math.sqrt(summands - colluders)
        return Release(
            epsilon,
            self.delta,
            sigma,
            sensitivity,
            self.mechanism,
            simulated=simulated,
            summands=summands,
            colluders=colluders,
        )

    def release(
        self,
        vector: Tensor,
        sensitivity: float,
        noise_seed: int | None = None,
        share: float = 1.0,
    ) -> tuple[Tensor, Release]:
        """Add the noise that makes the release of a vector (epsilon, delta)-private.

        Args:
            vector: A vector that was computed from private data, shape (k,).
            sensitivity: An upper bound, which the caller has proven, on how far replacing one
                record can move the vector in the l2-norm.
            noise_seed: None takes all noise from the operating system. A seed makes a simulation
                repeatable; the release is then marked as simulated and guarantees nothing.
            share: The release's share of the budget, as in ``cost``.

        Returns:
            The vector with noise, float64 on the CPU, and the cost of its release. Secret noise
            rounds the vector to a grid, so that its last bits reveal nothing.
        """
        release = self.cost(sensitivity, noise_seed is not None, share)
        vector = vector.detach().cpu().double()
        if self.epsilon is None:
            return vector.clone(), release
        if noise_seed is None:
            return add_secret_noise(vector, release.sigma), release
        settings = frozen_settings.simulated_noise_settings(
            noise_seed, self.epsilon, self.delta, self.mechanism, sensitivity, share
        )
        return add_simulated_noise(vector, release.sigma, settings), release

    def sum_settings(self) -> dict[str, Any]:
        """Return the options of secure sums as plain values; empty without secure sums."""
        if self.secure is None:
            return {}
        return frozen_settings.secure_sum_settings(
            self.secure.colluders, self.secure.count_share, self.secure.pins
        )
