"""The clients of a federation at real sites, as the server sees them."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from fedaux_pl.algorithms import Update
from fedaux_pl.callbacks.progress_bars import print_above_bars
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.server_features import ServerFeatures
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import of_head
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring
from fedaux_pl.sites.agreement import ASKED, agreement
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import SiteStatus
from fedaux_pl.sites.wire import (
    CODES,
    Letter,
    RefusalError,
    largest_body,
    read_count,
    read_number,
    read_tensors,
    write_tensors,
)

_PAUSE = 0.2  # seconds between two looks for sites
_RETRY = 2.0  # seconds before sites are asked again
_FINAL = ("settings", "limits", "budget")  # asking again gives the same answer


class Hub(Protocol):
    """The transport at the server."""

    def connected(self) -> list[str]:
        """The names of the sites that are connected."""

    def ask(
        self, requests: Mapping[str, Letter], timeout: float
    ) -> Iterator[tuple[str, Letter | None]]:
        """Sends requests and yields answers as they come; None for a site that gave none."""


class SiteClients:
    """A ClientPool whose clients are sites; created like LocalClients.

    Args:
        hub: The transport.
        status: Keeps who is there and who has answered.
        sites: The settings.
        federation: The federation, whose heads tell which sites have released theirs.
        context: The data and the tools of the run.
        modules: Not used: sites train.
        architectures: The architecture of each client.
        settings: How clients train.
        optimizer_states: Not used.
        algorithm: The method.
        kept: Not used.
    """

    def __init__(
        self,
        hub: Hub,
        status: SiteStatus,
        sites: Sites,
        federation: Federation,
        context: Context,
        modules: Mapping[str, nn.Module],
        architectures: Sequence[str],
        settings: LocalTraining,
        optimizer_states: Any,
        *,
        algorithm: Any,
        kept: Any,
    ) -> None:
        if context.processes.world_size > 1:
            raise ConfigurationError(
                "the server of sites runs in one process: set trainer.devices and num_nodes to 1"
            )
        self.hub, self.status, self.sites, self.federation = hub, status, sites, federation
        self.context, self.architectures, self.settings = context, architectures, settings
        self.agreement = agreement(federation)
        self.round_metrics: dict[str, float] = {}
        self._suspects: set[str] = set()  # did not answer in time
        self._waited = False

    def prepare(
        self,
        scoring: Scoring,
        features: ServerFeatures,
        maps: Mapping[str, PublicMap],
        secret_noise: bool,
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: sites release their heads, each its own for ever."""
        bodies, fields, likes = {}, {}, {}
        for name in {self.architectures[client] for client in clients}:
            public_map, state = maps[name], features.h0[name].state_dict()
            tensors = {f"h0/{k}": v for k, v in state.items() if not of_head(k)}
            tensors |= {f"map/{k}": v for k, v in public_map.tensors().items()}
            directions = public_map.directions
            fields[name] = {
                "bound": public_map.bound,
                "center": public_map.center is not None,
                "directions": None if directions is None else directions.shape[1],
            }
            if scoring.scorer.uses_negatives:
                tensors["negatives"] = features.negatives(name)
                fields[name]["negatives"] = len(tensors["negatives"])
            bodies[name] = write_tensors(tensors)
            width = int(self.federation.students[name].feature_dim)  # type: ignore[arg-type]
            row_length = width if directions is None else directions.shape[1]
            length = scoring.scorer.vector_length(row_length, len(self.context.data.classes))
            likes[name] = {"weight": torch.empty(length, dtype=torch.double)}

        def read(client: int, letter: Letter, like: State) -> ReleasedHead:
            return self._read_head(client, letter, scoring, maps[self.architectures[client]], like)

        heads = self._collect("prepare", clients, fields, bodies, likes, read)
        return [heads[client] for client in clients if client in heads]

    def _read_head(
        self, client: int, letter: Letter, scoring: Scoring, public_map: PublicMap, like: State
    ) -> ReleasedHead:
        fields, data = letter.fields, self.context.data
        size = _read_size(letter)
        if scoring.norm_bound == "private":
            bound = read_number(fields, "bound", public_map.bound, 1e300)
            public_map = replace(public_map, bound=bound)
        weight = read_tensors(letter.body, like)["weight"]
        sensitivity = read_number(fields, "sensitivity", 0, 1e300)
        record = scoring.record(sensitivity, fields.get("simulated") is True)
        release = replace(record, sigma=read_number(fields, "sigma", 0, 1e300))
        head = ReleasedHead(client, weight, public_map, release)
        num_negatives = len(data.negative_inputs)
        scoring.check_release(head, size, num_negatives)
        if not bool((weight.abs() <= scoring.largest_entry(size, num_negatives)).all()):
            raise RefusalError("message", "its release is larger than any data and noise can be")
        if release.simulated and not self.sites.rehearsal:
            raise PrivacyError("it has seeded noise, but this is no rehearsal")
        data.site_sizes[client] = size
        return head

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: the selected sites train from the server's model."""
        if self.federation.algorithm.scoring is not None:  # without a head there are no scores
            released = {head.client for head in self.federation.heads}
            clients = [client for client in clients if client in released]
        asked = {name: getattr(self.settings, name) for name in ASKED}
        names = {self.architectures[client] for client in clients}
        fields = {name: {"round": round_, **asked} for name in names}
        bodies = {name: write_tensors(states[name]) for name in names}
        head_only = self.federation.head_only
        likes = {
            name: {k: v for k, v in states[name].items() if not head_only or of_head(k)}
            for name in names
        }
        device = self.context.runner.device

        def read(client: int, letter: Letter, like: State) -> Update:
            name = self.architectures[client]
            state = read_tensors(letter.body, like)
            own = {key: tensor.to(device) for key, tensor in state.items()}
            size = _read_size(letter)
            loss = float(read_number(letter.fields, "loss", -1e30, 1e30))
            self.context.data.site_sizes[client] = size
            return Update(client, name, size, loss, {**states[name], **own})

        updates = self._collect("train", clients, fields, bodies, likes, read, round_)
        answered = {client: client in updates for client in clients}
        self.round_metrics = {
            f"answered/{self.sites.names[client]}": float(value)
            for client, value in answered.items()
        }
        return [updates[client] for client in clients if client in updates]

    def _collect(
        self,
        kind: str,
        clients: Sequence[int],
        fields: Mapping[str, Mapping[str, Any]],
        bodies: Mapping[str, bytes],
        likes: Mapping[str, State],
        read: Any,
        round_: int | None = None,
    ) -> dict[int, Any]:
        """Asks sites until there are ``min_answers``; those that refuse or fail are left out."""
        answers: dict[int, Any] = {}
        refused: dict[str, str] = {}
        needed = min(self.sites.min_answers, len(clients))
        if kind == "prepare" and self.federation.heads:
            needed = 0  # a round does not wait for sites that have never been there
        numbers = {self.sites.names[client]: client for client in clients}
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
                requests = {}
                for name in there:
                    own = self.architectures[numbers[name]]
                    requests[name] = Letter(
                        {**self._fields(kind, numbers[name]), **fields[own]},
                        bodies[own],
                        largest_body(likes[own]),
                    )
                for name, letter in self.hub.ask(requests, self.sites.timeout):
                    token = requests[name].fields["request"]
                    try:
                        like = likes[self.architectures[numbers[name]]]
                        answer = read(numbers[name], self._check(name, token, letter), like)
                    except (RefusalError, PrivacyError) as error:
                        code = error.code if isinstance(error, RefusalError) else "message"
                        if code in _FINAL:
                            refused[name] = code
                        self._tell(
                            f"{name} gave no answer to {_about(kind, round_)}: {first_line(error)}"
                        )
                        self.status.failed(name, code)
                        continue
                    answers[numbers[name]] = answer
                    self.status.answered(name, round_)
                    stage.update(1)
                if len(answers) >= needed:
                    for name in [n for n in missing if n not in there]:
                        self._tell(f"{name} is absent in {_about(kind, round_)}")
                    return answers
                time.sleep(_RETRY)

    def _fields(self, kind: str, client: int) -> dict[str, Any]:
        own = {"kind": kind, "request": secrets.token_hex(16), "client": client}
        return {**own, "agreement": self.agreement}

    def _check(self, name: str, token: str, letter: Letter | None) -> Letter:
        """An answer to this very request; raises a RefusalError for a code or another answer."""
        if letter is None:
            self._suspects.add(name)
            raise RefusalError("absent", "it did not answer in time, or its connection broke")
        self._suspects.discard(name)
        if letter.fields.get("request") != token:
            raise RefusalError("message", "it has answered an earlier request")
        if (code := letter.fields.get("code")) is not None:
            known = code if isinstance(code, str) and code in CODES else "failed"
            raise RefusalError(known, f"{CODES[known]} (code {known})")
        return letter

    def _await(self, names: Sequence[str], needed: int) -> list[str]:
        """The sites that are connected; waits for all at first, then for as many as are needed."""
        start, told = time.monotonic(), False
        while True:
            there = [name for name in self.hub.connected() if name in names]
            late = time.monotonic() - start > (0 if self._waited else self.sites.wait)
            if len(there) == len(names) or (late and len(there) >= needed):
                self._waited = True
                return self._alive(there)
            if not told and time.monotonic() - start > 1:
                told = True
                away = ", ".join(name for name in names if name not in there)
                self._tell(f"waiting for {away}")
            time.sleep(_PAUSE)

    def _alive(self, names: Sequence[str]) -> list[str]:
        """Leaves out sites that did not answer in time and do not answer a short question now."""
        suspects = {
            n: Letter({"kind": "hello", "request": ""}) for n in names if n in self._suspects
        }
        quiet = {n for n, letter in self.hub.ask(suspects, _HELLO) if letter is None}
        self._suspects -= set(suspects) - quiet
        return [name for name in names if name not in quiet]

    def _tell(self, text: str) -> None:
        print_above_bars(f"sites: {text}")


_STAGES = {"prepare": "scoring heads", "train": "clients"}
_HELLO = 5.0  # seconds in which a site says that it is there


def _read_size(letter: Letter) -> int:
    """|D_i| of an answer; raises a RefusalError if it is 0."""
    if not (size := read_count(letter.fields, "size")):
        raise RefusalError("message", "it has no samples")
    return size


def _about(kind: str, round_: int | None) -> str:
    return kind if round_ is None else f"round {round_}"
