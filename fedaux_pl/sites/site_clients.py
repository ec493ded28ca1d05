"""The clients of a federation at real sites, as the server sees them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedaux_pl.algorithms import Update
from fedaux_pl.errors import first_line
from fedaux_pl.federation import LocalTraining
from fedaux_pl.federation.client_pool import Votes
from fedaux_pl.federation.evaluation_metrics import EvaluationMetrics
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.sites.answer_collector import AnswerCollector
from fedaux_pl.sites.messages import evaluate, finish, train, vote
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_releases import SiteReleases
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.willing_sites import WillingSites
from fedaux_pl.sites.wire import Message, RefusalError


@dataclass
class SiteClients:
    """A pool of clients at sites, each of which may fail to answer: see ``ClientPool``.

    Attributes:
        requests: Asks each site once.
        collector: Asks until enough sites have answered.
        willing: Asks what the owner of a site need not allow.
        releases: Collects the releases of Algorithm 1.
        architectures: The architecture of each client.
        settings: The settings of the local training.
        head_only: Whether only the head is trained and sent.
        device: Where the server computes with updates.
        needs_release: Whether a client can take part in a round only after its release.
        metrics: Joins the metrics of all sites.
        current_states: Returns the students' weights by architecture.
        site_sizes: |D_i| of each site that has answered.
    """

    at_sites = True
    requests: SiteRequests
    collector: AnswerCollector
    willing: WillingSites
    releases: SiteReleases
    architectures: Sequence[str]
    settings: LocalTraining
    head_only: bool
    device: torch.device
    needs_release: bool
    metrics: EvaluationMetrics
    current_states: Callable[[], Mapping[str, State]]
    site_sizes: dict[int, int]
    round_metrics: dict[str, float] = field(default_factory=dict)

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return the step with the classifier that clients are sent, if it has one."""
        return self.releases.settle(step, clients, first)

    def prepare(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: let each site release a vector; a site always sends the same one."""
        return self.releases.collect(step, features, maps, clients)

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: let the selected sites train from the server's model.

        ``payloads`` are empty, because ``adapt_algorithm`` refuses methods that have some.
        """
        if self.needs_release:
            released = self.releases.released()
            clients = [client for client in clients if client in released]
        by_architecture = {
            name: train.write_request(
                round_, self.settings.epochs, self.settings.batch_size, states[name], self.head_only
            )
            for name in {self.architectures[client] for client in clients}
        }
        names = self.requests.sites.names
        requests = {names[i]: by_architecture[self.architectures[i]] for i in clients}

        def read(name: str, answer: Message) -> Update:
            client = names.index(name)
            architecture = self.architectures[client]
            update = train.read_answer(
                answer, client, architecture, states[architecture], self.device, self.head_only
            )
            self.site_sizes[client] = update.size
            return update

        needed = min(self.requests.sites.min_answers, len(clients))
        updates = self.collector.collect("train", requests, read, needed, round_)
        answered = {f"answered/{name}": float(name in updates) for name in requests}
        self.round_metrics = answered | self.releases.metrics
        return [updates[name] for name in requests if name in updates]

    def evaluate(self, round_: int) -> dict[str, float]:
        """Return the metrics of sites on test data of their own, if the server is to ask them."""
        if not self.requests.sites.evaluate:
            return {}
        request = evaluate.write_request(round_, self.current_states())
        metrics = self.willing.ask(
            "evaluate",
            round_,
            request,
            lambda _, answer: evaluate.read_answer(answer, self.metrics.metrics),
        )
        return self.metrics.join(metrics)

    def vote(
        self,
        round_: int,
        averages: Mapping[str, State],
        students: Mapping[str, State],
        weights: Sequence[float],
    ) -> Votes:
        """Return the sums of the votes of all sites that allow it and are connected."""
        request = vote.write_request(round_, averages, students, weights)
        answers = self.willing.ask(
            "vote",
            round_,
            request,
            lambda _, answer: vote.read_answer(answer, request.answer_template),
        )
        if not answers:
            log_line(f"no site has voted in round {round_}: only earlier votes count, if any")
        totals = {name: torch.zeros_like(sums) for name, sums in request.answer_template.items()}
        for sums_by_architecture in answers.values():
            for name, sums in sums_by_architecture.items():
                totals[name] += sums
        return Votes(totals, len(answers))

    def finish(self, round_: int, states: Mapping[str, State]) -> None:
        """Send the final model to each site that is connected, if the sites are to have it."""
        if not self.requests.sites.final_model:
            return
        by_architecture = {
            name: finish.write_request(round_, states[name]) for name in {*self.architectures}
        }
        names = zip(self.requests.sites.names, self.architectures, strict=True)
        requests = {site: by_architecture[architecture] for site, architecture in names}

        def read(_: str, answer: Message) -> bool:
            return finish.read_answer(answer)

        for name, is_written in self.requests.ask("finish", requests, read):
            if isinstance(is_written, RefusalError):
                log_line(f"{name} has no final model: {first_line(is_written)}")
            elif is_written:
                log_line(f"{name} has written the final model")
