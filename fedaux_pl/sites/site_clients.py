"""The clients of a federation at real sites, as the server sees them."""

import secrets
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
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.federation.context import Context, ServerFeatures
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import of_head
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.sites import wire
from fedaux_pl.sites.site_evaluation import join_states, read_metrics
from fedaux_pl.sites.site_settings import ASKED, Sites, adapt, agreement
from fedaux_pl.sites.site_status import SiteStatus, tell
from fedaux_pl.sites.wire import CODES, FINAL, Message, RefusalError, expect

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.transport import ServerTransport

_PAUSE = 0.2  # seconds between two looks for sites
_RETRY = 2.0  # seconds before sites are asked again
_HELLO = 5.0  # seconds in which a site says that it is there
_STAGES = {"prepare": "releases", "train": "clients"}
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
        federation.create_pool = partial(SiteClients, transport, status, sites, federation)
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
            f"data.holds must be public at the server of sites, but is {data.holds}: set "
            "data.holds to public (fedaux-pl sites init writes it to sites.yaml)"
        )
    adapt(federation, sites.rehearsal)
    if sites.evaluate:
        federation.sites_evaluate = True
        federation.privacy_notes = [
            "NOT private: what sites tell about the models on test data of their own, except an "
            "accuracy with noise (fedaux-pl sites status says whose), counted by its ledger"
        ]
    data.site_names = list(sites.names)


class SiteClients:
    """Clients at sites, with the interface of ``federation.clients.LocalClients``."""

    def __init__(
        self,
        transport: "ServerTransport",
        status: SiteStatus,
        sites: Sites,
        federation: Federation,
        context: Context,
        settings: LocalTraining,
    ) -> None:
        if context.processes.world_size > 1:
            raise ConfigurationError(
                "the server of sites runs in one process: set trainer.devices and num_nodes to 1"
            )
        data = context.data
        if sites.evaluate and data.evaluation_examples.clients is not None:
            raise ConfigurationError(
                "the server's test or validation data name their clients, and sites.evaluate asks "
                "the sites for the same metrics: set sites.evaluate to false, or remove the names"
            )
        self.transport, self.status, self.sites = transport, status, sites
        self.federation, self.context, self.settings = federation, context, settings
        self.agreement = agreement(federation)
        self.round_metrics: dict[str, float] = {}
        self.sum_metrics: dict[str, float] = defaultdict(float)  # of secure sums
        self._suspects: set[str] = set()  # did not answer in time
        self._waited = False
        self._silent: dict[str, str] = {}  # the code with which a site has evaluated nothing

    def prepare(
        self,
        step: Step,
        features: ServerFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: let each site release a vector once; later it returns the stored one."""
        architectures, questions = self.context.architectures, {}
        scoring = step.scoring
        sent = {f"sent/{k}": v for k, v in step.scorer.tensors().items()}
        for name in {architectures[client] for client in clients}:
            public_map, h0 = maps[name], features.h0[name]
            tensors = {f"h0/{k}": v for k, v in h0.state_dict().items() if not of_head(k)}
            tensors |= {f"map/{k}": v for k, v in public_map.tensors().items()} | sent
            directions = public_map.directions
            fields: dict[str, Any] = {
                "bound": public_map.bound,
                "center": public_map.center is not None,
                "directions": None if directions is None else directions.shape[1],
                "step": step.name,
            }
            if step.scorer.uses_negatives:
                tensors["negatives"] = features.negatives(name)
                fields["negatives"] = len(tensors["negatives"])
            classes, row_length = len(self.context.data.classes), public_map.row_length(h0)
            length = step.scorer.vector_length(row_length, classes)
            like = {} if step.summed else {"weight": torch.empty(length, dtype=torch.double)}
            questions[name] = Message(fields, wire.write_tensors(tensors), like)

        def read(client: int, fields: Mapping[str, Any], own: State, size: int) -> ReleasedHead:
            public_map = maps[architectures[client]]
            if scoring.norm_bound == "private":
                bound = wire.read_number(fields, "bound", public_map.bound, 1e300)
                public_map = replace(public_map, bound=bound)
            sensitivity = wire.read_number(fields, "sensitivity", 0, 1e300)
            cost = step.cost(sensitivity, fields.get("simulated") is True)
            release = replace(cost, sigma=wire.read_number(fields, "sigma", 0, 1e300))
            head = ReleasedHead(client, own["weight"], public_map, release)
            num_negatives = len(self.context.data.negative_inputs)
            step.check_release(head, size, num_negatives)
            largest = step.largest_entry(size, num_negatives)
            if not bool((head.weight.abs() <= largest).all()):
                raise PrivacyError("its release is larger than any data and noise can be")
            if release.simulated and not self.sites.rehearsal:
                raise PrivacyError("it has seeded noise, but this is no rehearsal")
            return head

        if step.summed:
            ready = sorted(self._collect("prepare", clients, questions, lambda client, *_: client))
            if sent and ready != sorted(clients):  # it would be paid for, and never be used
                tell("the second secure sum waits for all sites of the first one")
                return []
            from fedaux_pl.sites.secure_release import Collector  # needs an optional package

            groups: dict[str, list[str]] = {name: [] for name in questions}
            for client in ready:
                groups[architectures[client]].append(self.sites.names[client])
            return Collector(self, step, groups).heads(features, maps)
        heads = self._collect("prepare", clients, questions, read)
        return [heads[client] for client in clients if client in heads]

    def evaluate(self, round_: int) -> dict[str, float]:
        """Let sites evaluate the students on test data of their own, if they are to be asked."""
        if not self.sites.evaluate:
            return {}
        names = [name for name in self.sites.names if self._silent.get(name) not in FINAL]
        question = Message(
            {"round": round_}, wire.write_tensors(join_states(self.federation.students))
        )
        found = {}

        def read(name: str, answer: Message) -> dict[str, float]:
            count, epsilon, metrics = read_metrics(answer, self.federation.chosen_metrics)
            self.status.change(name, evaluated=[count, epsilon])
            return metrics

        for name, answer in self.ask("evaluate", dict.fromkeys(names, question), read):
            if not isinstance(answer, RefusalError):
                found[name] = answer
            elif self._silent.get(name) != answer.code:
                tell(f"no metrics of {name} from round {round_} on: {first_line(answer)}")
            self._silent[name] = getattr(answer, "code", "")
        return self.federation.evaluation.join({n: found[n] for n in names if n in found})

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: let the selected sites train from the server's model."""
        federation, architectures = self.federation, self.context.architectures
        if federation.algorithm.scoring is not None:  # without a head there are no scores
            released = {client for head in federation.heads for client in head.clients}
            clients = [client for client in clients if client in released]
        asked = {"round": round_, **{name: getattr(self.settings, name) for name in ASKED}}
        questions = {}
        for name in {architectures[client] for client in clients}:
            state = states[name]
            like = {k: v for k, v in state.items() if not federation.head_only or of_head(k)}
            questions[name] = Message(asked, wire.write_tensors(state), like)
        device = self.context.runner.device

        def read(client: int, fields: Mapping[str, Any], own: State, size: int) -> Update:
            name, loss = architectures[client], float(wire.read_number(fields, "loss", -1e30, 1e30))
            own = {key: tensor.to(device) for key, tensor in own.items()}
            return Update(client, name, size, loss, {**states[name], **own})

        updates = self._collect("train", clients, questions, read, round_)
        answered = {f"answered/{self.sites.names[i]}": float(i in updates) for i in clients}
        self.round_metrics = answered | self.sum_metrics
        return [updates[client] for client in clients if client in updates]

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
            own = wire.read_tensors(answer.body, asked[name].like)
            expect((size := wire.read_count(answer.fields, "size")) > 0, "it has no samples")
            result = read(numbers[name], answer.fields, own, size)
            self.context.data.site_sizes[numbers[name]] = size
            return result

        with self.context.progress.stage(_STAGES[kind], len(clients), "site") as stage:
            while True:
                missing = [n for n, i in numbers.items() if i not in answers and n not in refused]
                if len(missing) + len(answers) < needed:
                    codes = ", ".join(f"{name}: {code}" for name, code in refused.items())
                    raise ConfigurationError(
                        f"{kind}: {needed} answers are needed, but sites refuse ({codes}): agree "
                        "with them on the same run.yaml, within their limits"
                    )
                there = self._await(missing, needed - len(answers))
                for name, answer in self.ask(kind, {n: asked[n] for n in there}, read_one):
                    if not isinstance(answer, RefusalError):
                        answers[numbers[name]] = answer
                        stage.update(1)
                        if round_ is not None:
                            self.status.change(name, last_round=round_)
                        continue
                    if answer.code in FINAL:
                        refused[name] = answer.code
                    tell(f"{name} gave no answer to {about}: {first_line(answer)}")
                if len(answers) >= needed:
                    for name in [n for n in missing if n not in there]:
                        tell(f"{name} is absent in {about}")
                    return answers
                time.sleep(_RETRY)

    def ask(
        self, kind: str, questions: Mapping[str, Message], read: Callable[[str, Message], _T]
    ) -> Iterator[tuple[str, _T | RefusalError]]:
        """Ask sites once, and yield each answer as it is read, or why there is none."""
        there = self._alive([name for name in self.transport.connected() if name in questions])
        requests = {}
        for name in there:
            own = {"kind": kind, "client": self.sites.names.index(name)}
            own |= {"request": secrets.token_hex(16), "agreement": self.agreement}
            requests[name] = replace(questions[name], fields=own | dict(questions[name].fields))
        for name, message in self.transport.ask(requests, self.sites.timeout):
            answer: _T | RefusalError
            try:
                answer = read(name, self._check(name, requests[name], message))
                if kind != "evaluate":
                    self.status.change(name, last_code=None)
            except (RefusalError, PrivacyError) as error:
                code = getattr(error, "code", "message")
                answer = RefusalError(code, first_line(error))
                self.status.change(
                    name, **{"evaluated" if kind == "evaluate" else "last_code": code}
                )
            yield name, answer
        for name in questions:
            if name not in there:
                yield name, RefusalError("absent", "it is not connected")

    def _check(self, name: str, request: Message, answer: Message | None) -> Message:
        """Return an answer to this very request; raise a RefusalError for a code or another one."""
        if answer is None:
            self._suspects.add(name)
            raise RefusalError("absent", "it did not answer in time, or its connection broke")
        self._suspects.discard(name)
        is_own = answer.fields.get("request") == request.fields["request"]
        expect(is_own, "it has answered an earlier request")
        if (code := answer.fields.get("code")) is not None:
            known = code if isinstance(code, str) and code in CODES else "failed"
            raise RefusalError(known, f"{CODES[known]} (code {known})")
        return answer

    def _await(self, names: Sequence[str], needed: int) -> list[str]:
        """Wait for all sites at first, then for as many as needed; return those that answer."""
        start, told = time.monotonic(), False
        while True:
            there = [name for name in self.transport.connected() if name in names]
            late = time.monotonic() - start > (0 if self._waited else self.sites.wait)
            if len(there) == len(names) or (late and len(there) >= needed):
                self._waited = True
                return self._alive(there)
            if not told and time.monotonic() - start > 1:
                told = True
                absent = ", ".join(name for name in names if name not in there)
                tell(f"waiting for {absent}")
            time.sleep(_PAUSE)

    def _alive(self, names: Sequence[str]) -> list[str]:
        """Leave out sites that did not answer in time and do not answer a short question now."""
        hello = Message({"kind": "hello", "request": ""})
        suspects = {name: hello for name in names if name in self._suspects}
        quiet = {name for name, answer in self.transport.ask(suspects, _HELLO) if answer is None}
        self._suspects -= set(suspects) - quiet
        return [name for name in names if name not in quiet]
