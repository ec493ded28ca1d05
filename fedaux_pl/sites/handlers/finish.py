"""Answers ``finish``: the site writes the model of the last round for its own use."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedaux_pl.federation import LocalTraining
from fedaux_pl.federation.personal import PersonalModels
from fedaux_pl.sites import wire
from fedaux_pl.sites.final_model import FinalModel, Output
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages import finish
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message


@dataclass(frozen=True)
class Finish:
    """Writes the model, fine-tuned and with BatchNorm statistics of the site if it wants them.

    Attributes:
        models: Reads the model. The student of its architecture becomes the final model.
        personal: Makes the model that the site itself uses.
        local: The settings of the local training.
        output: What to do with the model; None for nothing.
        describe_model: Returns what makes a model differ from the server's, with these settings.
        describe_run: Returns the entry ``federation`` of a checkpoint.
    """

    models: ReceivedModels
    personal: PersonalModels
    local: LocalTraining
    output: Output | None
    describe_model: Callable[[LocalTraining, nn.Module], list[str]]
    describe_run: Callable[[], dict[str, Any]]

    @property
    def largest_request(self) -> int:
        """The bytes of the largest model."""
        return self.models.largest_model

    def answer(self, client: int, request: Message) -> Reply:
        """Return whether the model is written."""
        output = self.output
        if output is None:
            guarantee = "nothing: the final model is written only with --output"
            return Reply(*finish.write_answer(is_written=False), guarantee)
        round_ = wire.read_count(request.fields, "round")
        name, received = self.models.read_one(client, request.body)
        local = replace(self.local, fine_tuning=output.fine_tuning)
        self.personal.clients.settings = local
        [state] = self.personal.states(round_, [client], {name: received}).values()
        model = self.models.students[name]
        model.load_state_dict(state)
        left = "what has left this site is in its journal and its ledger"
        about = self.describe_run() | {"metrics": {"round": round_}, "privacy": [left]}
        output.write(FinalModel(name, model, self.describe_model(local, model), about))
        guarantee = "that it has written the final model: nothing about its data"
        return Reply(*finish.write_answer(is_written=True), guarantee)
