"""The release of a vector: Gaussian noise, what it costs, and what the server gets."""

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.scoring.feature_maps import PublicMap

VERSION = 1
"""The version of the code of a release: of scorers, maps, sensitivities and noise.

Raise it with every change of what is released. Stored releases of another version are not used.
"""

LARGEST_NOISE = 38
"""No draw of ``standard_normal``, rounded to the grid, has more standard deviations."""

_MARGIN = 1 + 1e-8  # more than the rounding errors of composing shares


@dataclass(frozen=True)
class Release:
    """What one release costs, and how it was made.

    A simulated release has its noise from a seed. Whoever knows or guesses the seed can remove it:
    (epsilon, delta) is what it would cost with secret noise. Of a secure sum, sigma and sensitivity
    are those of one client, (epsilon, delta) is that of the sum.
    """

    epsilon: float  # infinite without noise; delta, sigma and sensitivity are 0 then
    delta: float
    sigma: float  # of the noise in every coordinate
    sensitivity: float  # in the l2-norm
    mechanism: str  # analytic, classical, sampled (see ``is_update``); none without noise
    flaw: str = ""  # why (epsilon, delta) does not hold
    what: str = "its scoring head"
    simulated: bool = False
    summands: int = 1  # the clients of a secure sum; 1 if the server sees each vector
    colluders: int = 1  # those of them that may tell the server their noise and masks
    steps: int = 0  # of DP-SGD in a model update of version 1.0
    rate: float = 1.0  # at which such a step drew records

    @property
    def is_update(self) -> bool:
        """Whether it is a model update of version 1.0, which sites may have recorded.

        Its (epsilon, delta) does not hold if the network has dropout.
        """
        return self.mechanism == "sampled"

    @property
    def is_private(self) -> bool:
        """Whether (epsilon, delta) holds."""
        return self.mechanism != "none" and not self.flaw and not self.simulated

    @property
    def mu(self) -> float:
        """The mu of Gaussian differential privacy, D / sigma; infinite if not private.

        In a secure sum sigma is the noise of all clients but the colluding ones.
        """
        honest = self.summands - self.colluders if self.summands > 1 else 1
        return self.mu_alone / math.sqrt(honest)

    @property
    def mu_alone(self) -> float:
        """The mu of this client's noise alone, if a secure sum protects nothing."""
        if not self.is_private:
            return math.inf
        # A release of sensitivity 0 does not depend on the data and has no noise.
        return self.sensitivity / self.sigma if self.sensitivity else 0.0

    @property
    def total_sigma(self) -> float:
        """The standard deviation of the noise in what the server gets."""
        return self.sigma * math.sqrt(self.summands)

    @property
    def epsilon_alone(self) -> float:
        """Epsilon of this client's noise alone, at the same delta."""
        return gaussian_epsilon(self.delta, self.sigma / self.sensitivity)


@dataclass(frozen=True)
class SecureSums:
    """The options of secure sums: the server gets the sum of class statistics over clients alone.

    Each client adds a part of the noise.

    Attributes:
        colluders: t, at least 1: how many clients may show the server their noise and masks, or add
            no noise. A sum needs t + 2 clients.
        count_share: The share of the budget for the class counts of each client, which FedAUX needs
            besides a sum; null to choose it by the sizes of clients, or 0.1 at real sites, whose
            sizes are not known before.
        pins: The public key of each site, as ``fedaux-pl sites pin`` prints it, without which the
            server could put keys of its own in their place. Real sites need them; a simulation
            does not.

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
        """The number of clients that a sum needs."""
        return max(3, self.colluders + 2)


@dataclass(frozen=True)
class Privacy:
    """The privacy of all that a client releases.

    Attributes:
        epsilon: Greater than 0; null for no noise and no guarantee.
        delta: Between 0 and 1, both excluded.
        mechanism: ``analytic`` or ``classical`` (the paper's, with more noise, epsilon <= 1).
        secret: false derives the noise from the seed of the run: a simulation, which can be
            repeated and protects nothing. true takes it from the operating system, as a deployment
            must. In one process every run then costs (epsilon, delta) again; real sites release
            once and add up what they spend.
        secure: The options of secure sums, {} for their defaults: the server gets the sum of the
            clients' class statistics alone. null sends the server the vector of each client, which
            has all of the noise.

    Examples:
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

    def sum_settings(self) -> dict[str, Any]:
        """Return the options of secure sums as plain values; empty if there are none.

        Earlier releases are found by this text: never rename, reorder or remove one. Version 1.0
        could pay for several ``attempts``.
        """
        secure = self.secure
        if secure is None:
            return {}
        sums = {
            "colluders": secure.colluders,
            "attempts": 1,
            "count_share": secure.count_share,
            "pins": secure.pins,
        }
        return {"sums": sums}

    def cost(
        self,
        sensitivity: float,
        simulated: bool = False,
        share: float = 1.0,
        summands: int = 1,
    ) -> Release:
        """Return what the release of a vector with this l2-sensitivity costs.

        ``share`` is its share of mu^2, the budget in Gaussian differential privacy: releases whose
        shares sum to 1 cost together what one release with all of it does.

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
            factor = _MARGIN / math.sqrt(share)
            unit = gaussian_sigma(epsilon, self.delta, 1.0, self.mechanism)
            epsilon = gaussian_epsilon(self.delta, factor * unit)
            sigma *= factor
        colluders = 1 if self.secure is None else self.secure.colluders
        if summands > 1:
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
            vector: What is computed from private data, shape (k,).
            sensitivity: An upper bound, proven by the caller, on how far replacing one record can
                move the vector in the l2-norm.
            noise_seed: None takes all noise from the operating system. A seed makes a simulation
                repeatable: the release is marked as simulated and guarantees nothing. The noise
                depends on the seed, the vector and the privacy, so that two releases share their
                noise only if they are equal.
            share: The release's share of the budget, as in ``cost``.

        Returns:
            The vector with noise, float64 on the CPU, on a grid if it is secret; and its cost.
        """
        release = self.cost(sensitivity, noise_seed is not None, share)
        vector = vector.detach().cpu().double()
        if self.epsilon is None:
            return vector.clone(), release
        if noise_seed is None:
            noise = standard_normal(len(vector), random.SystemRandom())
            return round_to_grid(vector + release.sigma * noise, release.sigma), release
        settings = [noise_seed, self.epsilon, self.delta, self.mechanism, sensitivity]
        if share != 1:
            settings += [share, 1]
        digest = hashlib.sha256(json.dumps(settings).encode() + vector.numpy().tobytes())
        source = random.Random(digest.digest())  # noqa: S311 - a simulation
        return vector + release.sigma * standard_normal(len(vector), source), release


@dataclass(frozen=True)
class ReleasedHead:
    """What a client sends before the first round: a vector after noise, and how to use it."""

    client: int
    weight: Tensor  # w_i, float64 of shape (k,)
    public_map: PublicMap  # public, except the bound of the flawed ``norm_bound="private"``
    release: Release
    members: tuple[int, ...] = ()  # of a secure sum, of which ``client`` is the first

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose data are in it."""
        return self.members or (self.client,)

    def logits(self, features: Tensor) -> Tensor:
        """Compute <w_i, row(x)> for features h_0(x) of shape (N, d), float64 of shape (N,)."""
        rows = self.public_map.rows(features)
        return self.weight.to(rows.device) @ rows.T


def clients_of(heads: Sequence[ReleasedHead]) -> list[int]:
    """Return the clients whose data are in the heads, in order."""
    return sorted(client for head in heads for client in head.clients)


def stack_heads(heads: Sequence[ReleasedHead]) -> tuple[Tensor, Tensor]:
    """The vectors, shape (n, length), and the standard deviations of their noise, shape (n,)."""
    vectors = torch.stack([head.weight for head in heads])
    return vectors, vectors.new_tensor([head.release.total_sigma for head in heads])


def spent(
    releases: Sequence[Release], delta: float | None = None, alone: bool = False
) -> tuple[float, float]:
    """Compute (epsilon, delta) of all releases about the same data together.

    Basic composition (Dwork and Roth 2014, Theorem 3.16) adds the epsilons and the deltas. Gaussian
    noise composes better: a release with noise sigma at sensitivity D is mu-GDP with mu = D /
    sigma, and releases that are mu_1-GDP, ..., mu_k-GDP are together mu-GDP with mu = sqrt(mu_1^2 +
    ... + mu_k^2), also if each is chosen by the results of the earlier ones (Dong, Roth and Su
    2022, Corollary 3.3). A mu-GDP release is (epsilon, delta)-private for every epsilon >= 0 with
    the delta of the analytic Gaussian mechanism at sigma / D = 1 / mu. Both need independent noise.
    Returned is the smaller epsilon of both compositions; the basic one applies only if delta is at
    least the sum of the releases' deltas, which is the default.

    Model updates of version 1.0 always compose by the basic one: their epsilons and deltas are
    added to those of the other releases, also to a given delta.

    A release that is flawed, has no noise or is simulated costs an infinite epsilon. ``alone``
    states what holds if secure sums protect nothing.

    Examples:
        >>> once = Privacy(epsilon=0.1, delta=1e-5).cost(sensitivity=1.0)
        >>> epsilon, delta = spent([once, once], delta=1e-5)
        >>> round(epsilon, 3)
        0.146
    """
    is_valid = delta is None or 0 < delta < 1
    check_setting("delta", delta, is_valid, "lie strictly between 0 and 1")
    vectors = [release for release in releases if not release.is_update]
    updates = [release for release in releases if release.is_update]
    sum_of_deltas = sum(release.delta for release in vectors)
    stated = sum_of_deltas if delta is None else delta
    stated_with_updates = stated + sum(release.delta for release in updates)
    mu = math.hypot(*(release.mu_alone if alone else release.mu for release in vectors))
    if mu == math.inf or not all(release.is_private for release in updates):
        return math.inf, stated_with_updates
    epsilon = 0.0 if mu == 0 else gaussian_epsilon(stated, 1 / mu)
    if not alone and sum_of_deltas <= stated:  # the releases state epsilon of the sum
        epsilon = min(epsilon, sum(release.epsilon for release in vectors))
    return epsilon + sum(release.epsilon for release in updates), stated_with_updates


def round_to_grid(vector: Tensor, sigma: float) -> Tensor:
    """Round to multiples of a power of 2 between sigma / 2048 and sigma / 1024.

    The low-order bits of a sum in floating point tell its terms (Mironov 2012). A multiple of the
    grid stands for all numbers around it: rounding errors matter only at the borders between them,
    which a number meets with a probability of about 2^-42 if it is not much larger than sigma.

    Examples:
        >>> 1024 * round_to_grid(torch.tensor([0.12345678]).double(), sigma=1.0)
        tensor([126.], dtype=torch.float64)
    """
    if sigma == 0:  # of a release that does not depend on the data
        return vector
    step = math.ldexp(1.0, math.frexp(sigma)[1] - 11)
    return (vector / step).round() * step


def standard_normal(count: int, source: random.Random) -> Tensor:
    """Draw Gaussian noise, float64 of shape (count,), with tails up to 37 standard deviations.

    It inverts the distribution function at a uniform number of 1,022 random bits, which has 53
    significant digits however close to 0 it is. Noise from a number of 53 bits, such as that of
    ``random.gauss``, never exceeds 8.57 standard deviations and cannot deliver deltas below 1e-17.
    """
    tails = [(source.getrandbits(1022) + 1) / 2**1023 for _ in range(count)]  # in (0, 1/2]
    signs = [1 - 2 * source.getrandbits(1) for _ in range(count)]
    return torch.from_numpy(np.array(signs) * ndtri(np.array(tails)))
