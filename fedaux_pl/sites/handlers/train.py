"""Answers ``train``: the site trains the server's model on its data (Algorithm 2)."""

from dataclasses import dataclass, replace

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.federation import LocalTraining
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages import train
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.site_settings import Limits
from fedaux_pl.sites.wire import Message, expect


@dataclass(frozen=True)
class Train:
    """Trains within the limits of the site.

    Attributes:
        models: Reads the model.
        clients: Trains it.
        data: The data of the site.
        local: The settings of the training, of which the request replaces epochs and batch size.
        limits: How many epochs and which batch sizes the site allows.
        head_only: Whether only the head is trained and sent.
    """

    models: ReceivedModels
    clients: LocalClients
    data: FederatedDataModule
    local: LocalTraining
    limits: Limits
    head_only: bool

    @property
    def largest_request(self) -> int:
        """The bytes of the largest model."""
        return self.models.largest_model

    def answer(self, client: int, request: Message) -> Reply:
        """Return the weights after the training and its loss."""
        limits = self.limits
        asked = train.read_request(request)
        has_epochs = 1 <= asked.epochs <= limits.max_epochs
        has_batch_size = limits.min_batch_size <= asked.batch_size <= limits.max_batch_size
        expect(
            has_epochs and has_batch_size,
            f"got {asked.epochs} epochs of batch size {asked.batch_size}; expected 1 to "
            f"{limits.max_epochs} epochs and a batch size from {limits.min_batch_size} to "
            f"{limits.max_batch_size}",
            "limits",
        )
        name, state = self.models.read_one(client, request.body)
        self.clients.settings = replace(
            self.local, epochs=asked.epochs, batch_size=asked.batch_size
        )
        [update] = self.clients.train(asked.round, [client], {name: state}, {name: {}})
        size = self.data.client_sizes[client]
        fields, body = train.write_answer(update, size, self.head_only)
        return Reply(fields, body, "a model update and its training loss: NOT private")
