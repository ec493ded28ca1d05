"""What one release costs a client in privacy, and what several releases cost together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import gaussian_epsilon


@dataclass(frozen=True)
class Release:
    """The record of one release of a client: its noise, and the guarantee that the noise gives.

    The noise of a simulated release comes from a seed. Whoever knows or guesses the seed can remove
    the noise, so (epsilon, delta) states only what the release would cost with secret noise.

    If the release is a secure sum, ``sigma`` and ``sensitivity`` describe the vector of one client,
    while ``epsilon`` and ``delta`` describe the sum over all clients.

    Ledgers and checkpoints store the fields under these names: do not rename them.
    """

    epsilon: float  # infinite without noise
    delta: float  # 0 without noise
    sigma: float  # the standard deviation of the noise in every coordinate; 0 without noise
    sensitivity: float  # how far replacing one record can move the vector; 0 without noise
    mechanism: str  # analytic or classical; none without noise; sampled, see ``is_update``
    flaw: str = ""  # why (epsilon, delta) does not hold; empty if it holds
    what: str = "its scoring head"  # what the client released
    simulated: bool = False  # whether the noise comes from a seed
    summands: int = 1  # the number of clients in a secure sum; 1 if the server sees the vector
    colluders: int = 1  # how many of them may reveal their noise and masks to the server
    steps: int = 0  # the number of steps of DP-SGD in a model update of version 1.0
    rate: float = 1.0  # the rate at which each of these steps sampled records

    @property
    def is_update(self) -> bool:
        """Whether this is a model update of version 1.0, as ledgers of sites may still hold it.

        The (epsilon, delta) of a model update does not hold if the network has dropout.
        """
        return self.mechanism == "sampled"

    @property
    def is_private(self) -> bool:
        """Whether (epsilon, delta) holds."""
        return self.mechanism != "none" and not self.flaw and not self.simulated

    @property
    def mu(self) -> float:
        """The mu of Gaussian differential privacy, D / sigma; infinite if it is not private.

        In a secure sum, sigma is the standard deviation of the noise of all clients except the
        colluding ones.
        """
        honest_clients = self.summands - self.colluders if self.summands > 1 else 1
        return self.mu_alone / math.sqrt(honest_clients)

    @property
    def mu_alone(self) -> float:
        """The mu of this client's own noise, which holds even if a secure sum protects nothing."""
        if not self.is_private:
            return math.inf
        if self.sensitivity == 0:  # the vector does not depend on the data and has no noise
            return 0.0
        return self.sensitivity / self.sigma

    @property
    def total_sigma(self) -> float:
        """The standard deviation of the noise in the vector that the server receives."""
        return self.sigma * math.sqrt(self.summands)

    @property
    def epsilon_alone(self) -> float:
        """The epsilon of this client's own noise, at the same delta."""
        return gaussian_epsilon(self.delta, self.sigma / self.sensitivity)


def spent(
    releases: Sequence[Release], delta: float | None = None, alone: bool = False
) -> tuple[float, float]:
    """Compute the (epsilon, delta) that several releases about the same data cost together.

    Two theorems bound the cost, and the smaller epsilon of the two is returned. Both assume that
    the releases have independent noise.

    - Basic composition (Dwork and Roth 2014, Theorem 3.16) adds the epsilons and adds the deltas.
      It applies only if ``delta`` is at least the sum of the releases' deltas.
    - Gaussian composition is tighter. A release with noise sigma at sensitivity D is mu-GDP with
      mu = D / sigma. Releases that are mu_1-GDP, ..., mu_k-GDP are together mu-GDP with mu =
      sqrt(mu_1^2 + ... + mu_k^2), even if each release is chosen by the results of the earlier ones
      (Dong, Roth and Su 2022, Corollary 3.3). A mu-GDP release is (epsilon, delta)-private for
      every epsilon >= 0, with the delta of the analytic Gaussian mechanism at sigma / D = 1 / mu.

    Model updates of version 1.0 are no Gaussian releases: their epsilons and deltas are always
    added to the result, also to a given delta.

    Args:
        releases: If one of them is flawed, has no noise or is simulated, epsilon is infinite.
        delta: The delta at which epsilon is stated; by default the sum of the releases' deltas.
        alone: Whether to count only each client's own noise, which states the cost that holds even
            if secure sums protect nothing.

    Examples:
        >>> from fedaux_pl.scoring import Privacy
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
    stated_delta = sum_of_deltas if delta is None else delta
    total_delta = stated_delta + sum(release.delta for release in updates)
    mu = math.hypot(*(release.mu_alone if alone else release.mu for release in vectors))
    if mu == math.inf or not all(release.is_private for release in updates):
        return math.inf, total_delta
    epsilon = 0.0 if mu == 0 else gaussian_epsilon(stated_delta, 1 / mu)
    # A release states the epsilon of the whole sum, so basic composition says nothing of one alone.
    if not alone and sum_of_deltas <= stated_delta:
        epsilon = min(epsilon, sum(release.epsilon for release in vectors))
    return epsilon + sum(release.epsilon for release in updates), total_delta


def noisiest_of_each_kind(releases: Sequence[Release]) -> list[Release]:
    """Return one release of each kind, the one with the largest sigma.

    Releases are of one kind if they differ only in their sigma and sensitivity, which depend on the
    number of records of the client.
    """
    noisiest: dict[Release, Release] = {}
    for release in releases:
        kind = replace(release, sigma=0.0, sensitivity=0.0)
        if kind not in noisiest or release.sigma > noisiest[kind].sigma:
            noisiest[kind] = release
    return list(noisiest.values())
