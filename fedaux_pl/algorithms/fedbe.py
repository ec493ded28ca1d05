"""FedBE (Chen and Chao 2020): distillation from a Bayesian ensemble."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.algorithms.teachers import Member, Round, Teachers
from fedaux_pl.errors import check_setting
from fedaux_pl.functional import bayesian_ensemble, derive_seed, sample_posterior
from fedaux_pl.functional.posterior import Posterior


@dataclass(frozen=True)
class FedBE(Algorithm):
    """Distills the average from the mean prediction of clients, average and sampled models.

    Students are distilled as in FedDF. Two parts of Chen and Chao are left out: stochastic weight
    averaging of the student, and the temperature that sharpens the mean prediction.

    Args:
        samples: M, the number of models sampled for each architecture in a round.
        posterior: The distribution fitted to the clients' models, ``gaussian`` or ``dirichlet``.
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
    """

    distills = True

    samples: int = 10
    posterior: Posterior = "gaussian"
    pretrained: bool = False

    def __post_init__(self) -> None:
        check_setting("samples", self.samples, self.samples >= 0, "be at least 0")
        is_known = self.posterior in ("gaussian", "dirichlet")
        check_setting("posterior", self.posterior, is_known, "be gaussian or dirichlet")

    def members(self, models: Round) -> Sequence[Member]:
        """The clients' models, their average, and samples of the posterior fitted to them."""
        all_updates = models.all_updates
        members: list[Member] = []
        for number, (architecture, average) in enumerate(sorted(models.averages.items())):
            updates = [update for update in all_updates if update.architecture == architecture]
            if not updates:
                continue
            samples = sample_posterior(
                [update.state for update in updates],
                [update.size for update in updates],
                self.samples,
                derive_seed(models.seed, number),
                self.posterior,
                averaged=models.buffers[architecture],
            )
            members += [
                Member(architecture, update.state, update.client, update.size) for update in updates
            ]
            members += [Member(architecture, state) for state in (average, *samples)]
        return models.divide(members)

    def soft_labels(self, teachers: Teachers) -> Tensor:
        """The mean probability over all members of the ensemble."""
        total: Tensor | None = None
        count = 0
        for teacher in teachers:
            probabilities = bayesian_ensemble(teacher.logits[None])
            total = probabilities if total is None else total + probabilities
            count += 1
        if total is None:
            raise ValueError("there are no clients: an ensemble needs at least one")
        return total / count
