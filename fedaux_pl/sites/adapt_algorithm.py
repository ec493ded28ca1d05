"""Which methods can run over sites, and with which noise."""

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining


def adapt_algorithm(algorithm: Algorithm, local: LocalTraining, rehearsal: bool) -> None:
    """Make the noise of a method secret, except in a rehearsal.

    Raises a ConfigurationError if the method or the local training cannot run over sites.
    """
    keeps_tensors = algorithm.overrides("client_payload") or algorithm.overrides("own_entries")
    if keeps_tensors or algorithm.keeps_optimizer or local.fine_tuning:
        raise ConfigurationError(
            "a site keeps nothing between rounds except its ledger: use no local.fine_tuning, and "
            "no method whose clients keep tensors (Scaffold, FedBN, Centralized)"
        )
    algorithm.plan(None)  # raises if the plan needs the sizes of the sites
    if not rehearsal:
        algorithm.use_secret_noise()
