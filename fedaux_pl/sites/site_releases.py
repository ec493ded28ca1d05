"""Algorithm 1 over sites: the server asks each site for its release."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step, clients_of
from fedaux_pl.sites.answer_collector import AnswerCollector
from fedaux_pl.sites.first_results import FirstResults
from fedaux_pl.sites.messages import prepare
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.wire import Message


@dataclass
class SiteReleases:
    """Collects the releases of sites, and sums over them.

    Attributes:
        requests: Asks each site once.
        collector: Asks until enough sites have answered.
        architectures: The architecture of each client.
        data: The data of the server, which learns |D_i| from the answers.
        first_step: The name of the first step of releases; "" for a method without releases.
        released: Returns the clients that have made their first release.
        first_results: What this server has first sent. None with noise from a seed, where every run
            sends what it has computed.
        metrics: The seconds that secure sums have taken, for the log of each round.
    """

    requests: SiteRequests
    collector: AnswerCollector
    architectures: Sequence[str]
    data: FederatedDataModule
    first_step: str
    released: Callable[[], Sequence[int]]
    first_results: FirstResults | None
    metrics: dict[str, float] = field(default_factory=dict)
    _negatives: dict[str, Tensor] = field(default_factory=dict)  # h_0(x) on D^- as first sent

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return the step with the classifier that clients are sent, if it has one."""
        if not step.sends or self.first_results is None:
            return step
        return self.first_results.with_first_classifier(step, clients, first)

    def collect(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Return the releases of those of these clients that answer, ordered by client."""
        if step.name == self.first_step:
            maps = self._first_maps(step, features, maps)
        requests = self._write_requests(step, features, maps, clients)
        needed = min(self.requests.sites.min_answers, len(clients))
        if self.released():
            needed = 0  # a round does not wait for sites that have never been there
        if step.summed:
            return self._collect_sums(step, features, maps, clients, requests, needed)
        num_negatives = len(self.data.negative_inputs)

        def read(name: str, answer: Message) -> ReleasedHead:
            client = self.requests.sites.names.index(name)
            template = requests[name].answer_template
            public_map = maps[self.architectures[client]]
            head, size = prepare.read_answer(
                answer, template, step, client, public_map, num_negatives
            )
            if head.release.simulated and not self.requests.sites.rehearsal:
                raise PrivacyError("it has seeded noise, but this is no rehearsal")
            self.data.site_sizes[client] = size
            return head

        heads = self.collector.collect("prepare", requests, read, needed)
        return [heads[name] for name in requests if name in heads]

    def _first_maps(
        self, step: Step, features: PublicFeatures, maps: Mapping[str, PublicMap]
    ) -> Mapping[str, PublicMap]:
        """Return the maps that were first sent, and keep the negatives that were sent with them."""
        if self.first_results is None:
            return maps
        first_maps = {}
        for name, fitted in maps.items():
            first_maps[name], negatives = self.first_results.public_map(
                step,
                name,
                features.h0[name],
                fitted,
                compute_negatives=partial(features.negatives, name),
            )
            if negatives is not None:
                self._negatives[name] = negatives
        return first_maps

    def _write_requests(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> dict[str, Message]:
        """Return the request to each site, which is the same for sites of one architecture."""
        by_architecture = {}
        for name in {self.architectures[client] for client in clients}:
            negatives = None
            if step.scorer.uses_negatives:
                negatives = self._negatives.get(name)
                if negatives is None:
                    negatives = features.negatives(name)
            by_architecture[name] = prepare.write_request(
                step, features.h0[name], maps[name], negatives, len(self.data.classes)
            )
        names = self.requests.sites.names
        return {names[client]: by_architecture[self.architectures[client]] for client in clients}

    def _collect_sums(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
        requests: Mapping[str, Message],
        needed: int,
    ) -> list[ReleasedHead]:
        """Return the secure sum of each architecture, over the sites that answer."""
        # this file needs an optional package
        from fedaux_pl.sites.server_sums import SumCollector

        names = self.requests.sites.names

        def read(name: str, answer: Message) -> int:
            client = names.index(name)
            self.data.site_sizes[client] = prepare.read_answer_without_release(answer)
            return client

        ready = sorted(self.collector.collect("prepare", requests, read, needed).values())
        if step.sends and ready != sorted(clients):
            # a sum over fewer sites would be paid for and never be used
            log_line("the second secure sum waits for all sites of the first one")
            return []
        groups: dict[str, list[str]] = {self.architectures[client]: [] for client in clients}
        for client in ready:
            groups[self.architectures[client]].append(names[client])
        start = time.monotonic()
        heads = SumCollector(self.requests, step, groups, self.data).collect(features.h0, maps)
        summed = clients_of(heads)
        for client in clients:
            self.requests.status.change(names[client], in_sum=client in summed)
        seconds = time.monotonic() - start
        self.metrics["secure_sum/seconds"] = self.metrics.get("secure_sum/seconds", 0.0) + seconds
        return heads
