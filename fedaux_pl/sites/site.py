"""A site: the same configuration as at the server, and the private data of one client."""

import math
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.errors import PrivacyError, first_line
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.preparation import Preparation, create_extractor
from fedaux_pl.federation.role import PreparationPhase, Role
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import backbone_state, of_head
from fedaux_pl.scoring import Privacy, PublicMap, Step, first_step, pack, unpack
from fedaux_pl.sites import wire
from fedaux_pl.sites.budget import Budget, NewRelease, ReleaseKey
from fedaux_pl.sites.final_model import Output, write_final_model
from fedaux_pl.sites.journal import Journal
from fedaux_pl.sites.ledger import Ledger, ledger_digests
from fedaux_pl.sites.new_pixels import check_pixels
from fedaux_pl.sites.private_answers import PrivateAnswers
from fedaux_pl.sites.same_version import describe_difference, minor_version
from fedaux_pl.sites.site_evaluation import SiteEvaluation
from fedaux_pl.sites.site_settings import Limits, adapt, agreement, differences
from fedaux_pl.sites.site_vote import SiteVote
from fedaux_pl.sites.wire import Message, RefusalError, Reply, expect, join_states

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.site_sums import SiteSums

MAX_NEGATIVES = 10_000_000
MAX_WEIGHT = 1e100  # of a classifier: logits that overflow would tell about records without noise
_MAX_DIFFERENCES = 10  # in a line of the journal
_TRACEBACK_LINES = 30
Serve = Callable[[Callable[[Message], Message], int], None]


class Site(Role):
    """Answers the server's requests in place of the rounds of a federation.

    ``trainer.fit(federation, datamodule=data)`` runs it, with the Trainer's device and precision.

    Args:
        federation: The federation of the server's configuration, with the data of this site.
        limits: What the site agrees to.
        serve: Gets ``answer`` and the bytes of the largest request, and calls ``answer`` with every
            request until the site ends.
        name: The site's name, to which its key for secure sums belongs.
        server: The address of the server, which the ledger notes with every release.
        output: What to do with the final model; None for nothing.
    """

    has_rounds = False

    def __init__(
        self,
        federation: Federation,
        limits: Limits,
        serve: Serve,
        name: str = "site",
        server: str = "",
        output: Output | None = None,
    ) -> None:
        self.federation = federation
        self.limits = limits
        self.serve = serve
        self.name = name
        self.output = output
        self.origin = f"server {server}" if server else ""
        self.algorithm = federation.algorithm
        self.journal = Journal()
        federation.role = self

    def create_pool(self, clients: LocalClients) -> LocalClients:
        """Return the clients: whatever their number, each has the data of this site."""
        self.clients = clients
        return clients

    def run(self, phase: PreparationPhase, preparation: Preparation) -> None:
        """Answer requests until the site is ended."""
        federation = self.federation
        adapt(federation, self.limits.rehearsal)
        federation.plan = federation.plan_releases()  # again: ``adapt`` may make the noise secret
        self.agreement = agreement(federation)
        scoring = self.algorithm.scoring
        privacy = Privacy(None) if scoring is None else scoring.privacy
        data = federation.data
        limits = self.limits
        self.privacy = privacy
        self.budget = Budget(None, {}, privacy.delta, limits.epsilons(privacy), limits.allow_new_h0)
        if self.algorithm.secret_noise:  # not in a rehearsal
            key = machine_key()
            self.budget.ledger = Ledger(key_id(key), origin=self.origin)
            records = data.client(0)
            self.budget.digests = {0: ledger_digests(records.inputs, records.targets, key)}
        self.sums: SiteSums | None = None
        if any(step.summed for step in federation.plan.values()):
            from fedaux_pl.sites import site_sums

            self.sums = site_sums.SiteSums(
                federation, self.clients, self.name, self.budget, self.agreement
            )
        largest = max(map(self._largest_request, federation.students))
        if limits.evaluate:
            answers = PrivateAnswers(federation, limits, privacy, self.origin)
            self.evaluation = SiteEvaluation(federation, self.clients, answers)
            largest = max(largest, wire.largest_body(join_states(federation.students.states())))
        if limits.vote:
            self.vote = SiteVote(federation)
            largest = max(largest, wire.largest_body(self.vote.like))
        if not limits.accept_new_pixels:
            self._check_pixels()
        self._note_updates()
        if data.validation_fraction:
            self.journal.say(
                f"note: data.validation_fraction {data.validation_fraction:g} holds "
                f"{len(data.validation_examples or ())} records out of training and "
                "releases; an earlier release with another fraction is not used again",
                "note",
            )
        with warnings.catch_warnings():  # such as of features that are not finite
            warnings.showwarning = lambda message, *_, **__: self.journal.say(
                f"warning: {message}", "warning"
            )
            self.serve(self.answer, largest)

    def _check_pixels(self) -> None:
        """Raise a PrivacyError if a release would take pictures of the ledger for new records."""
        limits = self.limits
        if limits.rehearsal:
            return
        may_release = {
            "train": self.budget.ledger is not None,
            "test": limits.evaluate_epsilon is not None,
        }
        parts = [part for part, may in may_release.items() if may]
        data = self.federation.data
        check_pixels(data.private, parts, Ledger(key_id(machine_key())))

    def _note_updates(self) -> None:
        """Say what the records have cost if the ledger has model updates of version 1.0."""
        budget = self.budget
        if budget.ledger is None:
            return
        digests = [*budget.digests.values()]
        total = budget.ledger.total(digests, budget.delta, entries=budget.entries())
        if total.updates:
            self.journal.say(f"note: {total.describe()}", "note")

    def answer(self, request: Message) -> Message:
        """Return the answer to one request: what was asked, or a code that says why not."""
        token = str(request.fields.get("request", ""))[:64]
        asked = str(request.fields.get("kind", "?"))[:20]
        if asked == "hello":
            return Message({"request": token})
        round_ = request.fields.get("round")
        if round_ is not None:
            asked += f", round {str(round_)[:12]}"
        self.journal.say(f"asked: {asked}, {len(request.body):,} bytes received", "asked")
        start = time.monotonic()
        try:
            fields, body, guarantee = self._dispatch(request)
        except Exception as error:
            code = _code(error)
            if code == "failed":
                for line in traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]:
                    self.journal.say(f"  {line}", "traceback")
            version = {"version": minor_version()} if code == "settings" else {}
            sent = f"the code {code!r} and the version" if version else f"the code {code!r}"
            text = f"{first_line(error)} (sent: {sent} alone)"
            self.journal.say(f"NOT answered: {asked}: {text}", "NOT answered")
            return Message({"request": token, "code": code, **version})
        seconds = time.monotonic() - start
        text = f"sent: {asked}, {len(body):,} bytes after {seconds:.1f} s; {guarantee}"
        self.journal.say(text, f"sent: {request.fields['kind']}")
        return Message({"request": token, **fields}, body)

    def _dispatch(self, request: Message) -> Reply:
        fields = request.fields
        received = fields.get("agreement")
        if isinstance(received, Mapping):
            other = describe_difference(received.get("version"), "this site", "the server")
            expect(other is None, str(other), "settings")
        different = differences(self.agreement, received)
        reason = "; ".join(different[:_MAX_DIFFERENCES])
        if len(different) > _MAX_DIFFERENCES:
            reason += f"; and {len(different) - _MAX_DIFFERENCES:,} more"
        expect(not different, reason, "settings")
        client = wire.read_count(fields, "client", len(self.federation.architectures) - 1)
        kind = fields.get("kind")
        if kind == "prepare":
            return self._release(client, request)
        if self.sums is not None and kind in ("keys", "masked"):
            return self.sums.answer(fields)
        if kind == "evaluate":
            asked = "the server asks for an evaluation: see --evaluate"
            expect(self.limits.evaluate, asked, "limits")
            return self.evaluation.answer(request)
        if kind == "vote":
            expect(self.limits.vote, "the server asks for a vote: see --vote", "limits")
            return self.vote.answer(request)
        if kind == "finish":
            return write_final_model(self.federation, self.clients, self.output, client, request)
        expect(kind == "train", "it asks for something unknown")
        trains = self.algorithm.trains_clients
        expect(trains, "the method of this configuration sends no models", "settings")
        return self._train(client, request)

    def _train(self, client: int, request: Message) -> Reply:
        federation = self.federation
        limits = self.limits
        name = federation.architectures[client]
        epochs = wire.read_count(request.fields, "epochs")
        batch_size = wire.read_count(request.fields, "batch_size")
        has_epochs = 1 <= epochs <= limits.max_epochs
        has_batch_size = limits.min_batch_size <= batch_size <= limits.max_batch_size
        expect(
            has_epochs and has_batch_size,
            f"got {epochs} epochs of batch size {batch_size}; expected at most {limits.max_epochs} "
            f"epochs and a batch size from {limits.min_batch_size} to {limits.max_batch_size}",
            "limits",
        )
        device = federation.trainer.strategy.root_device
        state = wire.read_tensors(request.body, federation.students[name].state_dict(), device)
        self.clients.settings = replace(federation.local, epochs=epochs, batch_size=batch_size)
        round_ = wire.read_count(request.fields, "round")
        size = federation.data.client_sizes[client]
        [update] = self.clients.train(round_, [client], {name: state}, {name: {}})
        trained = update.state.items()
        sent = {k: v for k, v in trained if not federation.head_only or of_head(k)}
        guarantee = "a model update and its training loss: NOT private"
        return {"size": size, "loss": update.loss}, wire.write_tensors(sent), guarantee

    def _release(self, client: int, request: Message) -> Reply:
        """Return the release in this site's ledger, or a new one if the budget allows it.

        For a secure sum it only computes the vector, which stays here: see ``SiteSums``.
        """
        federation = self.federation
        step = federation.plan.get(str(request.fields.get("step")))
        if step is None:
            raise RefusalError("settings", "this configuration has no such step of releases")
        first = first_step(federation.plan)
        name = federation.architectures[client]
        data = federation.data
        h0, negatives, public_map, sent = self._read_preparation(name, step, request)
        step = step.with_sent(sent)
        size = data.client_sizes[client]
        received = [*h0.values(), *public_map.tensors().values()]
        count = 0
        if negatives is not None:
            received.append(negatives)
            count = len(negatives)

        def key_of(asked: Step, *tensors: Tensor) -> ReleaseKey:
            # in all ledgers: do not change it
            start = f"{name} {federation.model_options} "
            end = f" {asked.settings()} {data.fingerprints['private']}"
            if data.validation_fraction:  # the release is about other records
                end += f" without {data.validation_fraction}"
            return ReleaseKey(start, f"{tensor_digest(*tensors)} {public_map.bound!r}", end)

        earlier = key_of(first, *received) if sent else None
        key = replace(key_of(step, *received, *sent.values()), earlier=earlier)
        if step.summed:
            assert self.sums is not None  # noqa: S101 - the plan has secure sums
            self.sums.add(client, step, h0, public_map, key)
            guarantee = "the number of its records: nothing else has left"
            return {"size": size}, wire.write_tensors({}), guarantee

        def release() -> NewRelease:
            extractor = create_extractor(federation.students[name], h0)
            head = self.clients.release(client, step, extractor, negatives, public_map)
            # a site does not choose its number
            return pack([replace(head, client=0)]), {0: head.release}

        planned = step.cost(step.scoring.sensitivity(size, count), simulated=False)
        tensors, total = self.budget.release_once(key, release, planned)
        [head] = unpack(tensors, step)
        step.check_release(head, size, count)
        cost = head.release
        fields = {
            "size": size,
            "bound": head.public_map.bound,
            "sigma": cost.sigma,
            "sensitivity": cost.sensitivity,
            "simulated": cost.simulated,
        }
        guarantee = f"{cost.what}: NOT private (a rehearsal, or without a valid guarantee)"
        if total is not None and cost.is_private:
            guarantee = f"{cost.what}, {total.describe_one(cost)}"
        return fields, wire.write_tensors({"weight": head.weight}), guarantee

    def _expected(self, name: str, step: Step, fields: Mapping[str, Any]) -> State:
        """Return tensors of the names, shapes and dtypes that a request for a release must have."""
        student = self.federation.students[name]
        classes = len(self.federation.data.classes)
        width = int(student.feature_dim)  # type: ignore[arg-type]
        columns = width  # of rows, after the map
        doubles = partial(torch.empty, dtype=torch.float64, device="meta")
        like = {f"h0/{k}": v for k, v in backbone_state(student.state_dict()).items()}
        if fields.get("center") is True:
            like["map/center"] = doubles(width)
        if fields.get("directions") is not None:
            columns = wire.read_count(fields, "directions", width)
            like["map/directions"] = doubles(width, columns)
        if step.scorer.uses_negatives:
            rows = wire.read_count(fields, "negatives", MAX_NEGATIVES)
            like["negatives"] = torch.empty(rows, width, device="meta")
        for key, shape in step.scorer.sent_shapes(columns, classes).items():
            like[f"sent/{key}"] = doubles(*shape)
        return like

    def _read_preparation(
        self, name: str, step: Step, request: Message
    ) -> tuple[dict[str, Tensor], Tensor | None, PublicMap, dict[str, Tensor]]:
        """Read h_0, the negatives h_0(x) on D^-, the map, and what a later step is sent besides."""
        like = self._expected(name, step, request.fields)
        groups: dict[str, dict[str, Tensor]] = {"h0": {}, "map": {}, "sent": {}, "negatives": {}}
        for key, tensor in wire.read_tensors(request.body, like).items():
            group, _, inner = key.partition("/")
            groups[group][inner] = tensor
        sent = groups["sent"]
        is_small = all(bool((tensor.abs() <= MAX_WEIGHT).all()) for tensor in sent.values())
        expect(is_small, f"the classifier has weights above {MAX_WEIGHT:g}")
        bound = wire.read_number(request.fields, "bound", math.ulp(0.0), math.inf)
        unit = step.scoring.norm_bound == "unit"
        public_map = PublicMap(**groups["map"], unit=unit, bound=bound)
        negatives = groups["negatives"].get("")
        if negatives is not None:
            negatives = negatives.to(self.federation.trainer.strategy.root_device)
        return groups["h0"], negatives, public_map, sent

    def _largest_request(self, name: str) -> int:
        """Return the bytes of an architecture's largest request that this configuration allows."""
        student = self.federation.students[name]
        fields = {"center": True, "directions": student.feature_dim, "negatives": MAX_NEGATIVES}
        steps = self.federation.plan.values()
        releases = [self._expected(name, step, fields) for step in steps]
        return max(map(wire.largest_body, [student.state_dict(), *releases]))


def _code(error: Exception) -> str:
    if isinstance(error, RefusalError):
        return error.code
    if isinstance(error, FloatingPointError):
        return "diverged"
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return "storage"
    return "budget" if isinstance(error, PrivacyError) else "failed"
