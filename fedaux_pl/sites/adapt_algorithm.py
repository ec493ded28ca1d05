"""Which methods can run over sites, and with which noise."""

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining


def adapt_algorithm(algorithm: Algorithm, local: LocalTraining, rehearsal: bool) -> Algorithm:
    """Return the method with secret noise, except in a rehearsal.

    Raises a ConfigurationError if the method or the local training cannot run over sites.
    """
    keeps_entries = algorithm.overrides("own_entries")
    if keeps_entries or algorithm.sends_more_than_models or local.fine_tuning:
        raise ConfigurationError(
            "a site keeps nothing between rounds except its ledger: use no local.fine_tuning, and "
            "no method whose clients keep tensors (Scaffold, FedBN, Centralized)"
        )
    if algorithm.release is not None:
        algorithm.release.plan(None)  # raises if the plan needs the sizes of the sites
    return algorithm if rehearsal else algorithm.with_secret_noise()
