"""A site's vote on models between the server's average and its distilled model."""

import torch

from fedaux_pl.federation import Federation
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from fedaux_pl.sites import wire
from fedaux_pl.sites.private_answers import predict_received, read_own
from fedaux_pl.sites.site_evaluation import split_states
from fedaux_pl.sites.wire import Message, Reply, expect, join_states

MAX_CANDIDATES = 16


class SiteVote:
    """Votes by records of the site: the sum of max(log p(y | x), -4) over them for each candidate.

    The records are the validation data of the site or, if it has none, its training data. The votes
    have no noise: a site whose owner does not want that does not vote.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        data = federation.data
        validation = data.validation_examples or data.private.validation()
        if validation is None:
            self.kind = "training"
            self.examples = data.voting_examples
        else:
            self.kind = "validation"
            examples = read_own(federation, validation)
            self.examples = examples.to(federation.trainer.strategy.root_device)
        states = join_states(federation.students.states())
        self.like = join_states({"average": states, "distilled": states})

    def answer(self, request: Message) -> Reply:
        """Return the sums for each candidate and architecture."""
        federation = self.federation
        students = federation.students
        examples = self.examples
        weights = read_weights(request)
        received = wire.read_tensors(request.body, self.like)
        averages = split_states(received, students, "average/")
        distilled = split_states(received, students, "distilled/")

        votes = {}
        for name in students:
            sums = []
            for weight in weights:
                state = blend_states(averages[name], distilled[name], weight)
                logits = predict_received(federation, name, state, examples.inputs)
                sums.append(clipped_log_likelihood(logits, examples.targets))
            votes[name] = torch.stack(sums)
        count = len(examples)
        about = (
            f"its votes by {count} {self.kind} samples of its own: NOT private, no epsilon covers "
            "them"
        )
        return {"count": count}, wire.write_tensors(votes), about


def read_weights(request: Message) -> list[float]:
    """Read the weights of the distilled model, from 0 to 1."""
    weights = request.fields.get("weights")
    if not isinstance(weights, list):
        weights = []
    expect(0 < len(weights) <= MAX_CANDIDATES, f"it asks for 0 or over {MAX_CANDIDATES} votes")
    return [float(wire.read_number({"weight": weight}, "weight", 0, 1)) for weight in weights]
