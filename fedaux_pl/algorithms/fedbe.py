"""FedBE (Chen and Chao 2020): distillation from a Bayesian ensemble."""

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.errors import check_setting
from fedaux_pl.functional import bayesian_ensemble, derive_seed, sample_posterior
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.posterior import Posterior


class FedBE(Algorithm):
    """Distills the average from the mean prediction of clients, average and sampled models.

    Students are distilled as in FedDF. Two parts of Chen and Chao are left out: stochastic weight
    averaging of the student, and the temperature that sharpens the mean prediction.

    Args:
        samples: M, the number of models sampled for each architecture in a round.
        posterior: The distribution fitted to the clients' models, ``gaussian`` or ``dirichlet``.
    """

    distills = True
    needs_all_updates = True  # the posterior is fitted to all clients

    def __init__(
        self, samples: int = 10, posterior: Posterior = "gaussian", pretrained: bool = False
    ) -> None:
        super().__init__(pretrained)
        check_setting("samples", samples, samples >= 0, "be at least 0")
        is_known = posterior in ("gaussian", "dirichlet")
        check_setting("posterior", posterior, is_known, "be gaussian or dirichlet")
        self.samples = samples
        self.posterior: Posterior = posterior

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """The mean probability over all members of the ensemble."""
        members: list[tuple[str, State]] = []
        for number, (architecture, average) in enumerate(sorted(ensemble.round.averages.items())):
            updates = [u for u in ensemble.round.updates if u.architecture == architecture]
            if not updates:
                continue
            states = [update.state for update in updates]
            samples = sample_posterior(
                states,
                [update.size for update in updates],
                self.samples,
                derive_seed(ensemble.round.seed, number),
                self.posterior,
                averaged=ensemble.round.buffers[architecture],
            )
            members += [(architecture, state) for state in (*states, average, *samples)]
        if not members:
            raise ValueError("there are no clients: an ensemble needs at least one")

        def predict(number: int) -> list[Tensor]:
            return [bayesian_ensemble(ensemble.predict(*members[number])[None])]

        total = ensemble.zeros()
        numbers = range(len(members))
        mine = ensemble.processes.local(numbers)
        predictions = ensemble.processes.in_order(
            numbers, mine, predict, lambda _: [ensemble.zeros()]
        )
        # one by one: the sum over all members needs the memory of one
        for _, [member] in predictions:
            total = total + member
        return torch.div(total, len(members))
