"""Private updates (``local.privacy``): what each client's steps cost, and what is refused."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedaux_pl.errors import ConfigurationError, counted
from fedaux_pl.federation.client_models import has_batchnorm
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.functional import SampledGaussian, noise_multiplier
from fedaux_pl.scoring import Scoring
from fedaux_pl.scoring.guarantee import SIMULATED, Guarantee
from fedaux_pl.scoring.released_heads import conditions_of

if TYPE_CHECKING:
    from fedaux_pl.federation.federation_module import FederationModule


def released_mu(scoring: Scoring | None) -> float:
    """Return the mu of all that a client releases before the rounds; 0 if it is nothing."""
    if scoring is None:
        return 0.0
    privacy = scoring.privacy
    if privacy.epsilon is None or scoring.flaw:
        reason = scoring.flaw or "algorithm.privacy.epsilon is null"
        raise ConfigurationError(
            "local.privacy covers all that a client sends, but its releases have no guarantee "
            f"({reason}): change the method's options, or leave out local.privacy"
        )
    return 1 / privacy.cost(sensitivity=1.0).sigma


def private_steps(local: LocalTraining, size: int, rounds: int, released: float) -> SampledGaussian:
    """Return the steps of a client with ``size`` records in one of ``rounds`` rounds.

    Records are drawn at the rate batch_size / size. The noise is that with which the steps of all
    rounds, whether it takes part in them or not, and releases that are together ``released``-GDP
    have the privacy of ``local``.

    Examples:
        >>> from fedaux_pl import UpdatePrivacy
        >>> local = LocalTraining(batch_size=32, privacy=UpdatePrivacy(epsilon=8.0))
        >>> steps = private_steps(local, size=2500, rounds=100, released=0.0)
        >>> steps.rate, round(steps.multiplier, 2), steps.steps
        (0.0128, 1.39, 79)
    """
    privacy = local.privacy
    assert privacy is not None  # noqa: S101 - for mypy
    rate = min(1.0, local.batch_size / size)
    steps = local.epochs * math.ceil(1 / rate)
    try:
        multiplier = noise_multiplier(
            privacy.epsilon, privacy.delta, rate, rounds * steps, released
        )
    except ValueError as error:
        raise ConfigurationError(
            f"{error} in {rounds} rounds: raise local.privacy.epsilon, the budget of all that a "
            "client sends, or lower algorithm.privacy.epsilon"
        ) from error
    return SampledGaussian(rate, multiplier, steps)


def steps_of_clients(federation: "FederationModule") -> list[SampledGaussian]:
    """Return the steps of each client in a round of private updates; at a server none."""
    mu = released_mu(federation.algorithm.scoring)
    rounds = federation.trainer.max_epochs or -1
    sizes = [size for size in federation.data.client_sizes if size]
    return [private_steps(federation.local, size, rounds, mu) for size in sizes]


def check_private_updates(federation: "FederationModule") -> None:
    """Raise a ConfigurationError for what ``local.privacy`` does not cover."""
    algorithm = federation.algorithm
    students = federation.students.values()
    rounds = federation.trainer.max_epochs
    is_normalized = not federation.head_only and has_batchnorm(students)
    is_frozen = federation.local.batchnorm == "frozen"
    own_entries = any(map(algorithm.own_entries, students))
    problems = {
        f"clients of {algorithm.name} send no updates: leave out local.privacy": (
            not algorithm.trains_clients
        ),
        "BatchNorm mixes the records of a batch: set local.batchnorm to frozen, or model_options "
        "to {norm: group}": is_normalized and not is_frozen,
        f"clients of {algorithm.name} send or keep more than updates: choose another "
        "model.algorithm, such as FedAvg": (
            algorithm.has_payload or algorithm.keeps_optimizer or own_entries
        ),
        "trainer.precision 16-mixed loses small gradients of single records: set it to bf16-mixed "
        "or 32-true": federation.trainer.precision == "16-mixed",
        f"its noise depends on the number of rounds, but trainer.max_epochs is {rounds}: set it": (
            not (rounds and rounds > 0)
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ConfigurationError(f"local.privacy is set, but {problem}")
    if algorithm.secret_noise and not federation.data.at_sites:
        raise ConfigurationError(
            "local.privacy is set and algorithm.privacy.secret true, but updates of clients in "
            "one process come from the seed: set algorithm.privacy.secret to false for a "
            "simulation, or run real sites"
        )
    steps_of_clients(federation)  # raises if the releases have spent the budget


def describe_updates(
    local: LocalTraining,
    steps: Sequence[SampledGaussian],
    rounds: int,
    scoring: Scoring | None,
    secret: bool,
) -> list[str]:
    """Return the sentences about private updates; ``secret`` at real sites."""
    what = "its updates" if scoring is None else "its releases and its updates"
    sent = f"all that leaves a client, {what} in {counted(rounds, 'round')}"
    conditions = "" if scoring is None else conditions_of(scoring.privacy)
    cost = _describe_cost(local, steps, conditions)
    if secret:
        return [
            f"{sent}, is {cost}; batches and noise are drawn by the operating system of each site, "
            "whose ledger counts them, and no training loss is sent"
        ]
    return [
        f"simulated: with secret draws, {sent}, would be {cost}. Here batches and noise come from "
        "the seed of the run and protect nothing; real sites draw them from the operating system",
        "NOT private: the training losses, which a simulation shows and real sites do not send",
    ]


def tabulate_updates(
    local: LocalTraining, rounds: int, scoring: Scoring | None, secret: bool
) -> list[Guarantee]:
    """Return the rows about private updates; ``secret`` at real sites."""
    privacy = local.privacy
    assert privacy is not None  # noqa: S101 - for mypy
    what = "its updates" if scoring is None else "its releases and its updates"
    sent = f"in all: {what} in {counted(rounds, 'round')}, by DP-SGD"
    cost = f"({privacy.epsilon:g}, {privacy.delta:g})"
    cost += "" if scoring is None else conditions_of(scoring.privacy)
    if secret:
        return [Guarantee(sent, "private", cost)]
    return [
        Guarantee(sent, SIMULATED, f"with secret draws {cost}"),
        Guarantee("every round: its training loss (not at real sites)"),
    ]


def _describe_cost(local: LocalTraining, steps: Sequence[SampledGaussian], conditions: str) -> str:
    """Return the guarantee of private updates and how it is reached."""
    privacy = local.privacy
    assert privacy is not None  # noqa: S101 - for mypy
    budget = f"(epsilon {privacy.epsilon:g}, delta {privacy.delta:g})"
    text = f"{budget}-private{conditions} by DP-SGD"
    if not steps:
        return text
    multipliers = sorted(each.multiplier for each in steps)
    noise = f"{multipliers[0]:.3g}"
    if multipliers[-1] - multipliers[0] > 5e-3 * multipliers[0]:
        noise += f" to {multipliers[-1]:.3g}"
    return (
        f"{text}: gradients of single records clipped to norm {privacy.clip_norm:g}, noise of "
        f"{noise} times that on the sum of a batch"
    )
