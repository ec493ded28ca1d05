"""Answers ``vote``: the site votes on models between the server's average and distilled model."""

import torch

from fedaux_pl.data import Examples
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from fedaux_pl.sites import wire
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages.vote import read_weights
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message, join_states


class Vote:
    """Votes by records of the site: the sum of max(log p(y | x), -4) over them for each candidate.

    The records are the validation data of the site or, if it has none, its training data. The votes
    have no noise: a site whose owner does not want that does not vote.

    Args:
        models: Reads the models and predicts with them.
        examples: The records.
        kind: What they are, ``validation`` or ``training``.
    """

    def __init__(self, models: ReceivedModels, examples: Examples, kind: str) -> None:
        self.models = models
        self.examples = examples
        self.kind = kind
        states = models.template
        self.template = join_states({"average": states, "distilled": states})

    @property
    def largest_request(self) -> int:
        """The bytes of two models of each architecture."""
        return wire.largest_body(self.template)

    def answer(self, client: int, request: Message) -> Reply:
        """Return the sums for each candidate and architecture."""
        models = self.models
        examples = self.examples
        weights = read_weights(request)
        received = wire.read_tensors(request.body, self.template)
        averages = models.split(received, "average/")
        distilled = models.split(received, "distilled/")

        votes = {}
        for name in models.students:
            sums = []
            for weight in weights:
                state = blend_states(averages[name], distilled[name], weight)
                logits = models.predict(name, state, examples.inputs)
                sums.append(clipped_log_likelihood(logits, examples.targets))
            votes[name] = torch.stack(sums)
        count = len(examples)
        about = (
            f"its votes by {count} {self.kind} samples of its own: NOT private, no epsilon covers "
            "them"
        )
        return Reply({"count": count}, wire.write_tensors(votes), about)
