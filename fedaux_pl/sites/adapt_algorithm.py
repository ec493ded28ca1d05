"""Which methods can run over sites, and with which noise."""

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.errors import ConfigurationError, PrivacyError
from fedaux_pl.federation import LocalTraining


def adapt_algorithm(algorithm: Algorithm, local: LocalTraining, rehearsal: bool) -> Algorithm:
    """Return the method with secret noise, except in a rehearsal.

    Raises a ConfigurationError if the method or the local training cannot run over sites, and a
    PrivacyError if the method does not take its noise from its option ``privacy``.
    """
    hooks = ("own_entries", "server_payload", "correction")
    sends_more = algorithm.sends_more_than_models or any(map(algorithm.overrides, hooks))
    if sends_more or local.fine_tuning:
        raise ConfigurationError(
            "a site keeps nothing between rounds except its ledger: use no local.fine_tuning, and "
            "no method whose clients keep tensors (Scaffold, FedBN, Centralized)"
        )
    adapted = algorithm if rehearsal else algorithm.with_secret_noise()
    if adapted.release is not None:
        steps = adapted.release.plan(None).values()  # raises if it needs the sizes of the sites
        is_secret = all(step.scoring.privacy.secret for step in steps)
        if not rehearsal and not (is_secret and adapted.secret_noise):
            raise PrivacyError(
                f"the noise of {type(algorithm).__name__} does not become secret by its option "
                "privacy.secret, so its releases would not be private: create the scoring of its "
                "release with its option privacy"
            )
    return adapted
