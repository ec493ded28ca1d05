"""FedBE (Chen and Chao 2020): a Bayesian ensemble of clients, their average and samples teaches."""

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import bayesian_ensemble, derive_seed, sample_posterior
from fedaux_pl.functional.posterior import Posterior


class FedBE(Algorithm):
    """Distils the average from the mean prediction of clients, average and sampled models.

    Args:
        samples: M, models sampled for each architecture in a round.
        posterior: ``gaussian`` or ``dirichlet``, what is fitted to the clients' models.
        pretrained: Whether models start from features h_0 that were learned on the auxiliary data
            (FedBE+P), or from random weights.
    """

    distills = True
    sees_all = True  # the posterior is fitted to all of them

    def __init__(
        self, samples: int = 10, posterior: Posterior = "gaussian", pretrained: bool = False
    ) -> None:
        super().__init__(pretrained)
        if samples < 0:
            raise ValueError(f"samples must be at least 0, but is {samples}")
        if posterior not in ("gaussian", "dirichlet"):
            raise ValueError(f"posterior must be 'gaussian' or 'dirichlet', but is {posterior!r}")
        self.samples = samples
        self.posterior: Posterior = posterior

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """The mean probability over all members of the ensemble."""
        total, members = ensemble.nothing(), 0
        for number, (architecture, average) in enumerate(sorted(ensemble.averages.items())):
            own = [u for u in ensemble.updates if u.architecture == architecture]
            if not own:
                continue
            states = [update.state for update in own]
            samples = sample_posterior(
                states,
                [update.size for update in own],
                self.samples,
                derive_seed(ensemble.seed, number),
                self.posterior,
                averaged=ensemble.buffers[architecture],
            )
            every = [*states, average, *samples]
            members += len(every)
            for state in ensemble.processes.share(every):
                # one member at a time: the mean over all of them needs no more memory than one
                total = total + bayesian_ensemble(ensemble.predict(architecture, state)[None])
        if not members:
            raise ValueError("there are no clients to form an ensemble of")
        [total] = ensemble.processes.sum([total])
        return torch.div(total, members)
