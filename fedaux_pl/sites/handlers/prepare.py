"""Answers ``prepare``: the site releases a vector, with noise, and only once (Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.scoring import Plan, first_step, pack, unpack
from fedaux_pl.sites.budget import Budget, NewRelease
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.ledger_keys import ReleaseKey, release_key
from fedaux_pl.sites.messages import prepare
from fedaux_pl.sites.messages.prepare import ReleaseRequest
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message, RefusalError

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.site_sums import SiteSums


@dataclass(frozen=True)
class Prepare:
    """Releases the vector of each step once, if the budget allows it.

    Attributes:
        plan: The steps in which clients release.
        models: The models, whose features the site computes.
        model_options: The option ``model_options`` of the federation.
        data: The data of the site.
        clients: Computes the vector and adds its noise.
        budget: The ledger of the site and its limits.
        sums: The secure sums of the site; None if the plan has none.
    """

    plan: Plan
    models: ReceivedModels
    model_options: Mapping[str, Any]
    data: FederatedDataModule
    clients: LocalClients
    budget: Budget
    sums: "SiteSums | None"

    @property
    def largest_request(self) -> int:
        """The bytes of the largest request for a release."""
        students = self.models.students.values()
        classes = len(self.data.classes)
        sizes = [
            prepare.largest_request(step, student, classes)
            for step in self.plan.values()
            for student in students
        ]
        return max(sizes, default=0)

    def answer(self, client: int, request: Message) -> Reply:
        """Return the release in the ledger of the site, or a new one if the budget allows it.

        For a secure sum, the site computes the vector and keeps it: see ``SiteSums``.
        """
        step = self.plan.get(str(request.fields.get("step")))
        if step is None:
            raise RefusalError("settings", "this configuration has no such step of releases")
        architecture = self.models.architectures[client]
        student = self.models.students[architecture]
        classes = len(self.data.classes)
        received = prepare.read_request(request, step, student, classes, self.models.device)
        key = self._key(architecture, received)
        if not received.step.summed:
            return self._release(client, architecture, received, key)
        assert self.sums is not None  # noqa: S101 - the plan has secure sums
        self.sums.add(client, received, key)
        guarantee = "the number of its records: nothing else has left"
        size = self.data.client_sizes[client]
        return Reply(*prepare.write_answer_without_release(size), guarantee)

    def _key(self, architecture: str, received: ReleaseRequest) -> ReleaseKey:
        """Return the key of the release; that of a later step names the first release, too."""
        create_key = partial(
            release_key,
            architecture,
            self.model_options,
            bound=received.public_map.bound,
            data=self.data.fingerprints["private"],
            held_out=self.data.validation_fraction,
        )
        key = create_key(received.step, received.tensors)
        if not received.classifier:
            return key
        earlier = create_key(first_step(self.plan), received.tensors_of_first_step)
        return replace(key, earlier=earlier)

    def _release(
        self, client: int, architecture: str, received: ReleaseRequest, key: ReleaseKey
    ) -> Reply:
        step = received.step
        size = self.data.client_sizes[client]

        def release() -> NewRelease:
            h0 = self.models.create_h0(architecture, received.h0)
            head = self.clients.release(client, step, h0, received.negatives, received.public_map)
            # always client 0 in the ledger, because the server chooses the number of a site
            return pack([replace(head, client=0)]), {0: head.release}

        sensitivity = step.scoring.sensitivity(size, received.num_negatives)
        planned = step.cost(sensitivity, simulated=False)
        tensors, total = self.budget.release_once(key, release, planned)
        [head] = unpack(tensors, step)
        step.check_release(head, size, received.num_negatives)  # a stored one may be of other code
        cost = head.release
        guarantee = f"{cost.what}: NOT private (a rehearsal, or without a valid guarantee)"
        if total is not None and cost.is_private:
            guarantee = f"{cost.what}, {total.describe_one(cost)}"
        return Reply(*prepare.write_answer(head, size), guarantee)
