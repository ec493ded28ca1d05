"""Answers ``vote``: the site votes on models between the server's average and distilled model."""

import torch

from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from fedaux_pl.sites import wire
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages.vote import read_weights
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message, join_states


class Vote:
    """Votes by validation data of the site: the sum of max(log p(y | x), -4) for each candidate.

    They have no noise: a site whose owner does not want that does not vote.
    """

    def __init__(self, models: ReceivedModels, examples: Examples) -> None:
        self.models = models
        self.examples = examples
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
            f"its votes by {count} validation samples of its own: NOT private, no epsilon covers "
            "them"
        )
        return Reply({"count": count}, wire.write_tensors(votes), about)


def validation_examples(data: FederatedDataModule) -> Examples:
    """Return the validation data of the site; raise a ConfigurationError if it has none."""
    examples = data.validation_examples or data.private.validation()
    if examples is None:
        raise ConfigurationError(
            "--vote needs validation data of this site: hold some out (such as "
            "--data.validation_fraction 0.1), or give its source validation data"
        )
    return examples
