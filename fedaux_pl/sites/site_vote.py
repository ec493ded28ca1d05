"""A site's vote on models between the server's average and its distilled model."""

import math

import torch
from torch import Tensor

from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from fedaux_pl.functional.blending import LEAST_LOG_LIKELIHOOD
from fedaux_pl.sites import wire
from fedaux_pl.sites.private_answers import PrivateAnswers
from fedaux_pl.sites.site_evaluation import split_states
from fedaux_pl.sites.wire import Message, Reply, expect, join_states

MAX_CANDIDATES = 16


class SiteVote:
    """Votes by validation data of the site: the sum of max(log p(y | x), -4) for each candidate.

    With ``vote_epsilon`` all sums of a request are released with Gaussian noise. Sensitivity:
    4 sqrt(K) for K sums. Proof: a term depends on one record alone and lies in [-4, 0], so that a
    replaced record changes each sum by at most 4; the number of records is public.
    """

    def __init__(self, federation: Federation, answers: PrivateAnswers) -> None:
        self.federation = federation
        self.answers = answers
        states = join_states(federation.students.states())
        self.like = join_states({"average": states, "distilled": states})

    def answer(self, request: Message) -> Reply:
        """Return the sums for each candidate and architecture."""
        answers = self.answers
        students = self.federation.students
        count = len(answers)
        round_ = wire.read_count(request.fields, "round")
        weights = read_weights(request)
        received = wire.read_tensors(request.body, self.like)
        averages = split_states(received, students, "average/")
        distilled = split_states(received, students, "distilled/")

        def sums() -> Tensor:
            values = []
            for name in students:
                for weight in weights:
                    state = blend_states(averages[name], distilled[name], weight)
                    logits = answers.predict(name, state)
                    values.append(clipped_log_likelihood(logits, answers.examples.targets))
            return torch.stack(values).cpu()

        what = "its votes: clipped log-likelihoods of its validation records"
        sensitivity = -LEAST_LOG_LIKELIHOOD * math.sqrt(len(students) * len(weights))
        asked = f"{weights} {tensor_digest(*received.values())}"
        votes, guarantee = answers.release(what, sums, sensitivity, asked, round_)
        by_name = dict(zip(students, votes.reshape(len(students), -1), strict=True))
        about = f"its votes by {count} validation samples of its own: {guarantee}"
        fields = {"count": count, "epsilon": answers.epsilon}
        return fields, wire.write_tensors(by_name), about


def read_weights(request: Message) -> list[float]:
    """Read the weights of the distilled model, from 0 to 1."""
    weights = request.fields.get("weights")
    if not isinstance(weights, list):
        weights = []
    expect(0 < len(weights) <= MAX_CANDIDATES, f"it asks for 0 or over {MAX_CANDIDATES} votes")
    return [float(wire.read_number({"weight": weight}, "weight", 0, 1)) for weight in weights]


def validation_examples(data: FederatedDataModule) -> Examples:
    """Return the validation data of the site; raise a ConfigurationError if it has none."""
    examples = data.validation_examples or data.private.validation()
    if examples is None:
        raise ConfigurationError(
            "--vote needs validation data of this site: hold some out (such as "
            "--data.validation_fraction 0.1), or give its source validation data"
        )
    return examples
