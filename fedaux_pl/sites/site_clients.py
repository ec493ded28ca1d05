"""The clients of a federation at real sites, as the server sees them."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedaux_pl.algorithms import Update
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.federation import Federation
from fedaux_pl.federation.client_pool import ClientPool, Votes
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.context import ServerFeatures
from fedaux_pl.federation.role import Role
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import pl
from fedaux_pl.models import backbone_state, complete_options, of_head
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.scoring.guarantee import Guarantee
from fedaux_pl.scoring.plan import first_step
from fedaux_pl.scoring.release import clients_of
from fedaux_pl.sites import wire
from fedaux_pl.sites.codes import FINAL, REPEATED
from fedaux_pl.sites.final_model import send_final_models
from fedaux_pl.sites.first_results import FirstResults, first_results_folder
from fedaux_pl.sites.site_evaluation import read_metrics
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.site_settings import ASKED, Sites, adapt, agreement
from fedaux_pl.sites.site_status import SiteStatus, tell
from fedaux_pl.sites.wire import Message, RefusalError, expect, join_states

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.transport import ServerTransport

_RETRY = 2.0  # seconds before sites are asked again
_STAGES = {"prepare": "releases", "train": "clients"}
_ANSWERS = {"evaluate": "metrics", "vote": "votes"}
_UNLESS_NOISY = ("NOT private, unless it adds noise", "unlimited; with noise, by its ledger")
_T = TypeVar("_T")


@contextmanager
def connect(
    federation: Federation, data: FederatedDataModule, sites: Sites, root: Path
) -> Iterator[None]:
    """Run the clients of a federation at real sites while the block runs.

    ``with connect(federation, data, sites, root): trainer.fit(federation, datamodule=data)``

    The server's ``data`` have ``holds="public"``; ``sites.json`` in the folder ``root`` says who is
    connected. Raises a ConfigurationError if settings or certificates do not fit, NVFlare is not
    installed, or the port is taken.
    """
    from fedaux_pl.sites.transport import ServerTransport  # raises if NVFlare is not installed

    attach(federation, data, sites)
    status = SiteStatus(root / "sites.json", sites.names)
    with ServerTransport(sites, status) as transport:
        federation.role = SiteServer(federation, transport, status, sites)
        yield


def attach(federation: Federation, data: FederatedDataModule, sites: Sites) -> None:
    """Check that a federation can run over sites, name its clients and make noise secret."""
    count = len(federation.architectures)
    if len(sites.names) != count:
        raise ConfigurationError(
            f"sites.names has {len(sites.names)} sites, but the federation has {count} clients "
            f"{federation.clients}: give each site one client"
        )
    if data.holds != "public":
        raise ConfigurationError(
            f"data.holds: got {data.holds}; expected public at the server of sites: set it there "
            "(fedaux-pl sites init writes it to sites.yaml)"
        )
    scoring = federation.algorithm.scoring
    secure = None if scoring is None else scoring.privacy.secure
    unpinned = [] if secure is None else [name for name in sites.names if name not in secure.pins]
    if unpinned:
        raise ConfigurationError(
            f"privacy.secure.pins has no pin of {', '.join(unpinned)}: let each site run fedaux-pl "
            "sites pin, and write its line to the run.yaml that all share"
        )
    adapt(federation, sites.rehearsal)
    data.site_names = list(sites.names)


class SiteServer(Role):
    """The server of real sites: its clients are there."""

    def __init__(
        self,
        federation: Federation,
        transport: "ServerTransport",
        status: SiteStatus,
        sites: Sites,
    ) -> None:
        self.federation = federation
        self.transport = transport
        self.status = status
        self.sites = sites
        notes = []
        unprotected = []
        if sites.evaluate:
            told = "if it allows it: its metrics on test data of its own"
            if federation.batchnorm_statistics == "own":
                told += ", by BatchNorm statistics of its training data"
            unprotected.append(Guarantee(told, *_UNLESS_NOISY))
            notes.append(
                "NOT private: what sites tell about the models on test data of their own, except "
                "an accuracy with noise (fedaux-pl sites status says whose), counted by its ledger"
            )
            if federation.batchnorm_statistics == "own":
                notes.append(
                    "NOT private: the same metrics depend on the training records of the sites, by "
                    "their own BatchNorm statistics"
                )
        if federation.uses_vote:
            told = "if it allows it: its vote by validation or training data of its own"
            unprotected.append(Guarantee(told))
            notes.append(
                "NOT private: the votes of sites by their validation data or, if a site has none, "
                "by its training data"
            )
        if federation.algorithm.secret_noise:
            self.kept = first_results_folder()
        self.privacy_notes = notes
        self.unprotected = unprotected

    def check(self, trainer: pl.Trainer) -> None:
        """Raise a ConfigurationError if a callback monitors what sites may stop to tell."""
        if not self.sites.evaluate:
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            monitor = str(getattr(callback, "monitor", None))
            if monitor.removeprefix("val/").startswith(("mean_client/", "worst_client/")):
                raise ConfigurationError(
                    f"trainer.callbacks: {type(callback).__name__} monitors {monitor}, but sites "
                    "tell their metrics only if they allow it, are connected and have budget left: "
                    "monitor accuracy, or val/accuracy if the server has validation data, or "
                    "client_loss/mean"
                )

    def create_pool(self, clients: LocalClients) -> ClientPool:
        """Return the clients at the sites."""
        federation = self.federation
        shared = agreement(federation)
        requests = SiteRequests(self.transport, self.status, self.sites, shared)
        return SiteClients(requests, federation, clients)


class SiteClients:
    """Clients at sites."""

    at_sites = True

    def __init__(
        self, requests: SiteRequests, federation: Federation, clients: LocalClients
    ) -> None:
        context = clients.context
        sites = requests.sites
        if context.processes.world_size > 1:
            raise ConfigurationError(
                "the server of sites runs in one process: set trainer.devices and num_nodes to 1"
            )
        if sites.evaluate and context.data.evaluation_examples.clients is not None:
            raise ConfigurationError(
                "the server's test or validation data name their clients, and sites.evaluate asks "
                "the sites for the same metrics: set sites.evaluate to false, or remove the names"
            )
        self.requests = requests
        self.sites = sites
        self.federation = federation
        self.context = context
        self.settings = clients.settings
        self.round_metrics: dict[str, float] = {}
        self.sum_metrics: dict[str, float] = defaultdict(float)  # of secure sums
        students = federation.students
        options = {name: complete_options(name, **students.options_of(name)) for name in students}
        self._first_results = FirstResults(context, options)
        self._negatives: dict[str, torch.Tensor] = {}  # h_0(x) on D^-, as it was first sent
        # by kind of request, the codes of sites that did not answer the last one
        self._refusals: dict[str, dict[str, str]] = defaultdict(dict)

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return the step with the classifier that this machine has first sent."""
        if not step.sends or not self.federation.algorithm.secret_noise:
            return step
        return self._first_results.settle(step, clients, first)

    def prepare(
        self,
        step: Step,
        features: ServerFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: let each site release a vector once; later it returns the stored one."""
        architectures = self.context.architectures
        is_first = step.name == first_step(self.federation.plan).name
        if is_first and self.federation.algorithm.secret_noise:
            maps = self._first_maps(step, features, maps)
        names = {architectures[client] for client in clients}
        questions = {name: self._question(step, features, maps[name], name) for name in names}
        if not step.summed:
            read = partial(self._read_head, step, maps)
            heads = self._collect("prepare", clients, questions, read)
            return [heads[client] for client in clients if client in heads]
        ready = sorted(self._collect("prepare", clients, questions, lambda client, *_: client))
        if step.sends and ready != sorted(clients):  # it would be paid for, and never be used
            tell("the second secure sum waits for all sites of the first one")
            return []
        from fedaux_pl.sites.server_sums import Collector  # needs an optional package

        groups: dict[str, list[str]] = {name: [] for name in questions}
        for client in ready:
            groups[architectures[client]].append(self.sites.names[client])
        start = time.monotonic()
        collector = Collector(self.requests, step, groups, self.context.data)
        sums = collector.heads(features, maps)
        joined = clients_of(sums)
        for client in clients:
            self.requests.status.change(self.sites.names[client], in_sum=client in joined)
        self.sum_metrics["secure_sum/seconds"] += time.monotonic() - start
        return sums

    def _first_maps(
        self, step: Step, features: ServerFeatures, maps: Mapping[str, PublicMap]
    ) -> dict[str, PublicMap]:
        """Return the maps that were first sent, and keep the negatives that were sent with them."""
        first = {}
        for name, fitted in maps.items():
            first[name], negatives = self._first_results.public_map(step, features, name, fitted)
            if negatives is not None:
                self._negatives[name] = negatives
        return first

    def _question(
        self, step: Step, features: ServerFeatures, public_map: PublicMap, name: str
    ) -> Message:
        """Return the request for a release of the clients of one architecture."""
        scorer = step.scorer
        h0 = features.h0[name]
        state = backbone_state(h0.state_dict())
        groups = {"h0": state, "map": public_map.tensors(), "sent": scorer.tensors()}
        tensors = join_states(groups)
        directions = public_map.directions
        fields: dict[str, Any] = {
            "bound": public_map.bound,
            "center": public_map.center is not None,
            "directions": None if directions is None else directions.shape[1],
            "step": step.name,
        }
        if scorer.uses_negatives:
            negatives = self._negatives.get(name)
            if negatives is None:
                negatives = features.negatives(name)
            tensors["negatives"] = negatives
            fields["negatives"] = len(negatives)
        classes = len(self.context.data.classes)
        length = scorer.vector_length(public_map.row_length(h0), classes)
        like = {} if step.summed else {"weight": torch.empty(length, dtype=torch.double)}
        return Message(fields, wire.write_tensors(tensors), like)

    def _read_head(
        self,
        step: Step,
        maps: Mapping[str, PublicMap],
        client: int,
        fields: Mapping[str, Any],
        tensors: State,
        size: int,
    ) -> ReleasedHead:
        public_map = maps[self.context.architectures[client]]
        if step.scoring.norm_bound == "private":
            bound = wire.read_number(fields, "bound", public_map.bound, 1e300)
            public_map = replace(public_map, bound=bound)
        sensitivity = wire.read_number(fields, "sensitivity", 0, 1e300)
        cost = step.cost(sensitivity, fields.get("simulated") is True)
        release = replace(cost, sigma=wire.read_number(fields, "sigma", 0, 1e300))
        head = ReleasedHead(client, tensors["weight"], public_map, release)
        num_negatives = len(self.context.data.negative_inputs)
        step.check_release(head, size, num_negatives)
        largest = step.largest_value(size, num_negatives)
        if not bool((head.weight.abs() <= largest).all()):
            raise PrivacyError("its release is larger than any data and noise can be")
        if release.simulated and not self.sites.rehearsal:
            raise PrivacyError("it has seeded noise, but this is no rehearsal")
        return head

    def evaluate(self, round_: int) -> dict[str, float]:
        """Let sites evaluate the students on test data of their own, if they are to be asked."""
        if not self.sites.evaluate:
            return {}
        federation = self.federation
        body = wire.write_tensors(join_states(federation.students.states()))
        metrics = self._ask_willing(
            "evaluate",
            Message({"round": round_}, body),
            lambda _, answer: read_metrics(answer, federation.chosen_metrics),
        )
        return federation.evaluation.metrics.join(metrics)

    def vote(
        self,
        round_: int,
        averages: Mapping[str, State],
        students: Mapping[str, State],
        weights: Sequence[float],
    ) -> Votes:
        """Return the votes of all sites that allow it and are connected."""
        candidates = {"average": join_states(averages), "distilled": join_states(students)}
        like = {name: torch.empty(len(weights), dtype=torch.double) for name in students}
        fields = {"round": round_, "weights": list(weights)}
        question = Message(fields, wire.write_tensors(join_states(candidates)), like)
        answers = self._ask_willing(
            "vote", question, lambda _, answer: wire.read_tensors(answer.body, like)
        )
        if not answers:
            tell(f"no site has voted in round {round_}: earlier votes count alone, or the average")
        totals = {name: torch.zeros_like(sums) for name, sums in like.items()}
        for votes in answers.values():
            for name, sums in votes.items():
                totals[name] += sums
        return Votes(totals, len(answers))

    def _ask_willing(
        self, kind: str, question: Message, read: Callable[[str, Message], _T]
    ) -> dict[str, _T]:
        """Ask all sites that have not refused for good; a refusal is told once and ends nothing."""
        refusals = self._refusals[kind]
        names = [name for name in self.sites.names if refusals.get(name) not in FINAL]
        answers = {}
        for name, answer in self.requests.ask(kind, dict.fromkeys(names, question), read):
            code = ""
            if isinstance(answer, RefusalError):
                code = answer.code
                if refusals.get(name) != code:
                    since = f"from round {question.fields['round']} on"
                    tell(f"no {_ANSWERS[kind]} of {name} {since}: {first_line(answer)}")
            else:
                answers[name] = answer
            refusals[name] = code
        return {name: answers[name] for name in names if name in answers}

    def finish(self, round_: int, states: Mapping[str, State]) -> None:
        """Send the final models to the sites, if they are to have them."""
        if self.sites.final_model:
            send_final_models(self.requests, self.context.architectures, round_, states)

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: let the selected sites train from the server's model."""
        federation = self.federation
        architectures = self.context.architectures
        if federation.algorithm.scoring is not None:  # without a head there are no scores
            released = clients_of(federation.heads)
            clients = [client for client in clients if client in released]
        asked = {"round": round_, **{name: getattr(self.settings, name) for name in ASKED}}
        questions = {}
        for name in {architectures[client] for client in clients}:
            state = states[name]
            like = {k: v for k, v in state.items() if not federation.head_only or of_head(k)}
            questions[name] = Message(asked, wire.write_tensors(state), like)
        device = self.context.runner.device

        def read(client: int, fields: Mapping[str, Any], tensors: State, size: int) -> Update:
            name = architectures[client]
            loss = float(wire.read_number(fields, "loss", -1e30, 1e30))
            trained = {key: tensor.to(device) for key, tensor in tensors.items()}
            return Update(client, name, size, loss, {**states[name], **trained})

        updates = self._collect("train", clients, questions, read, round_)
        answered = {f"answered/{self.sites.names[i]}": float(i in updates) for i in clients}
        self.round_metrics = answered | self.sum_metrics
        return [updates[client] for client in clients if client in updates]

    def own_models(
        self, round_: int, clients: Sequence[int], states: Mapping[str, State]
    ) -> dict[int, State]:
        """Return the server's models: sites keep no others, which ``adapt`` has checked."""
        return {client: states[self.context.architectures[client]] for client in clients}

    def _collect(
        self,
        kind: str,
        clients: Sequence[int],
        questions: Mapping[str, Message],
        read: Callable[[int, Mapping[str, Any], State, int], _T],
        round_: int | None = None,
    ) -> dict[int, _T]:
        """Ask sites until there are ``min_answers``; those that refuse or fail are left out.

        ``read`` checks an answer, given the client, plain values, tensors and |D_i|.
        """
        answers: dict[int, _T] = {}
        refused: dict[str, str] = {}
        about = kind if round_ is None else f"round {round_}"
        needed = min(self.sites.min_answers, len(clients))
        if kind == "prepare" and self.federation.heads:
            needed = 0  # a round does not wait for sites that have never been there
        numbers = {self.sites.names[client]: client for client in clients}
        asked = {n: questions[self.context.architectures[i]] for n, i in numbers.items()}

        def read_one(name: str, answer: Message) -> _T:
            tensors = wire.read_tensors(answer.body, asked[name].like)
            size = wire.read_count(answer.fields, "size")
            expect(size > 0, "it has no samples")
            result = read(numbers[name], answer.fields, tensors, size)
            self.context.data.site_sizes[numbers[name]] = size
            return result

        with self.context.progress.stage(_STAGES[kind], len(clients), "site") as stage:
            while True:
                missing = [n for n, i in numbers.items() if i not in answers and n not in refused]
                if len(missing) + len(answers) < needed:
                    codes = ", ".join(f"{name}: {code}" for name, code in refused.items())
                    advice = (
                        "agree with them on the same version of fedaux-pl and the same run.yaml, "
                        "within their limits"
                    )
                    if "diverged" in refused.values():
                        lr = f"{self.settings.lr:g}"
                        advice = f"lower local.lr (--model.local.lr), which is {lr}"
                    raise ConfigurationError(
                        f"{kind}: {needed} answers are needed, but sites refuse ({codes}): {advice}"
                    )
                there = self.requests.await_sites(missing, needed - len(answers))
                present = {name: asked[name] for name in there}
                for name, answer in self.requests.ask(kind, present, read_one):
                    if isinstance(answer, RefusalError):
                        if answer.code in REPEATED:
                            refused[name] = answer.code
                        tell(f"{name} gave no answer to {about}: {first_line(answer)}")
                        continue
                    answers[numbers[name]] = answer
                    stage.update(1)
                    if round_ is not None:
                        self.requests.status.change(name, last_round=round_)
                if len(answers) >= needed:
                    for name in missing:
                        if name not in there:
                            tell(f"{name} is absent in {about}")
                    return answers
                time.sleep(_RETRY)
