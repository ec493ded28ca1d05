"""A site: the same configuration as at the server, and the private data of one client."""

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.errors import ConfigurationError, PrivacyError, first_line
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.preparation import Preparation, create_extractor
from fedaux_pl.models import of_head
from fedaux_pl.scoring import Ledger, PrivacySpent, PublicMap, ReleasedHead, Scoring
from fedaux_pl.scoring.ledger import Entry
from fedaux_pl.scoring.release_once import release_once
from fedaux_pl.sites.agreement import agreement, differences
from fedaux_pl.sites.wire import (
    Letter,
    RefusalError,
    largest_body,
    read_count,
    read_number,
    read_tensors,
    write_tensors,
)

MAX_NEGATIVES = 10_000_000
Serve = Callable[[Callable[[Letter], Letter], int], None]


@dataclass(frozen=True)
class Limits:
    """What a site agrees to, whatever the server asks.

    Args:
        epsilon_limit: The largest epsilon that all releases about a record may cost together, at
            the delta of the method; null for the epsilon of the method, which allows one release.
        allow_new_h0: Whether to release again, under the same settings and about the same data, if
            the server sends another h_0, feature map or negatives than before. Each time costs the
            epsilon of the method once more, up to ``epsilon_limit``.
        max_epochs: The largest number of local epochs in a round.
        min_batch_size: The smallest batch size of the local training.
        max_batch_size: The largest one.
        rehearsal: Whether the noise is that of the configuration: from a seed it protects nothing.
            Otherwise it is secret, and a server that wants another one is refused.
    """

    epsilon_limit: float | None = None
    allow_new_h0: bool = False
    max_epochs: int = 20
    min_batch_size: int = 2
    max_batch_size: int = 1024
    rehearsal: bool = False

    def __post_init__(self) -> None:
        if self.epsilon_limit is not None and not self.epsilon_limit > 0:
            raise ValueError(f"epsilon_limit must be positive, but is {self.epsilon_limit}")
        if self.max_epochs < 1 or not 1 <= self.min_batch_size <= self.max_batch_size:
            raise ValueError(
                "max_epochs and min_batch_size must be at least 1, and max_batch_size at least "
                f"min_batch_size, but they are {self.max_epochs}, {self.min_batch_size} and "
                f"{self.max_batch_size}"
            )


class SiteFederation(Federation):
    """The federation as a site sees it: instead of running rounds it answers the server.

    Attributes:
        limits: What the site agrees to.
        serve: Calls the function that it is given with every request, until the site ends; it
            also gets the bytes that the largest request may have.
    """

    limits = Limits()
    serve: Serve
    _refused = 0  # requests in a row

    def prepare(self, preparation: Preparation) -> None:
        """Answers requests until the site is ended."""
        if self.algorithm.has_payload or self.carry:
            raise ConfigurationError(WITHOUT_STATE)
        if not self.limits.rehearsal:
            self.algorithm.use_secret_noise()
        self.own_agreement = agreement(self)
        self.serve(self.answer, max(map(self._largest_request, self.students)))
        self.trainer.fit_loop.max_epochs = 0  # no rounds here

    def answer(self, request: Letter) -> Letter:
        """The answer to one request: what was asked, or a code that says why not."""
        token = str(request.fields.get("request", ""))[:64]
        about = str(request.fields.get("kind", "?"))[:20]
        if about == "hello":
            return Letter({"request": token})
        if (round_ := request.fields.get("round")) is not None:
            about += f", round {str(round_)[:12]}"
        count = self._refused + 1
        told = is_told(count, 100)  # refusals in a row: a server fills no journal
        if told:
            say(f"asked: {about}, {_size(request.body)} received")
        start = time.monotonic()
        try:
            fields, body, guarantee = self._answer(request)
        except Exception as error:
            code, self._refused = _code(error), count
            if told:
                if code == "failed":
                    traceback.print_exc()
                text = f"{first_line(error)} (sent: the code {code!r} alone)"
                say(f"NOT answered ({count} in a row): {about}: {text}")
            return Letter({"request": token, "code": code})
        self._refused = 0
        say(f"sent: {about}, {_size(body)} after {time.monotonic() - start:.1f} s; {guarantee}")
        return Letter({"request": token, **fields}, body)

    def _answer(self, request: Letter) -> tuple[dict[str, Any], bytes, str]:
        fields = request.fields
        if different := differences(self.own_agreement, fields.get("agreement")):
            raise RefusalError("settings", "; ".join(different))
        client = read_count(fields, "client", len(self.architectures) - 1)
        if fields.get("kind") == "prepare":
            return self._release(client, request)
        if fields.get("kind") != "train":
            raise RefusalError("message", "it asks for something unknown")
        if not self.algorithm.trains_clients:
            raise RefusalError("settings", "the method of this configuration sends no models")
        return self._train(client, request)

    def _train(self, client: int, request: Letter) -> tuple[dict[str, Any], bytes, str]:
        name, limits = self.architectures[client], self.limits
        epochs = read_count(request.fields, "epochs")
        batch_size = read_count(request.fields, "batch_size")
        if not 1 <= epochs <= limits.max_epochs:
            raise RefusalError(
                "limits", f"{epochs} epochs are asked for, allowed {limits.max_epochs}"
            )
        if not limits.min_batch_size <= batch_size <= limits.max_batch_size:
            raise RefusalError(
                "limits",
                f"a batch size of {batch_size} is asked for, allowed are "
                f"{limits.min_batch_size} to {limits.max_batch_size}",
            )
        state = read_tensors(request.body, self._template(name))
        device = self.trainer.strategy.root_device
        self._local.settings = replace(self.local, epochs=epochs, batch_size=batch_size)
        [update] = self._local.train(
            read_count(request.fields, "round"),
            [client],
            {name: {key: tensor.to(device) for key, tensor in state.items()}},
            {name: {}},
        )
        sent = {k: v for k, v in update.state.items() if self._is_sent(k)}
        fields = {"size": update.size, "loss": update.loss}
        return fields, write_tensors(sent), "a model update and its training loss: NOT private"

    def _release(self, client: int, request: Letter) -> tuple[dict[str, Any], bytes, str]:
        """The head of this site: the one in its ledger, or a new one if the budget allows it."""
        scoring, name = self.algorithm.scoring, self.architectures[client]
        if scoring is None:
            raise RefusalError("settings", "the method of this configuration releases no heads")
        h0, negatives, public_map = self._read_preparation(name, scoring, request)

        def release() -> ReleasedHead:
            extractor = create_extractor(self.students[name], h0)
            return self._local.release(
                client, scoring, extractor, negatives, public_map, self.algorithm.secret_noise
            )

        total = None
        if self.algorithm.secret_noise:
            received = [*h0.values(), *public_map.tensors().values()]
            received += [] if negatives is None else [negatives]
            # the key of a release in all ledgers: do not change it
            own = (
                f"{name} {self.model_options} ",
                f" {scoring.release_settings()} {self.data.fingerprints['private']}",
            )
            key = f"{tensor_digest(*received)} {public_map.bound!r}".join(own)
            count = 0 if negatives is None else len(negatives)
            head, total = self._recorded(key, own, scoring, release, count)
        else:
            head = release()
        fields = {
            "size": len(self.data.client(client)),
            "bound": head.public_map.bound,
            "sigma": head.release.sigma,
            "sensitivity": head.release.sensitivity,
            "simulated": head.release.simulated,
        }
        return fields, write_tensors({"weight": head.weight}), _guarantee(head, total)

    def _recorded(
        self,
        key: str,
        own: tuple[str, str],
        scoring: Scoring,
        release: Callable[[], ReleasedHead],
        num_negatives: int,
    ) -> tuple[ReleasedHead, PrivacySpent]:
        """The head in the ledger, or a new one that is there before it leaves; and all costs.

        Args:
            key: The key of the release.
            own: What the key begins and ends with: all of it but what the server has sent.
            scoring: What is released.
            release: Computes it.
            num_negatives: |D^-|.
        """
        ledger, digests = Ledger(self.data.key_id), self.data.record_digests(0)
        size = self.data.client_sizes[0]
        limit = self.limits.epsilon_limit or scoring.privacy.epsilon or 0.0

        def check(entries: Sequence[Entry]) -> None:
            known = [e for e in entries if e.key.startswith(own[0]) and e.key.endswith(own[1])]
            if known and not self.limits.allow_new_h0:
                raise RefusalError(
                    "budget",
                    "the ledger has a release with these settings about these data, but the server "
                    "now sends another h_0, feature map or negatives, so it would be a second one: "
                    "let the server use what it sent before (in its state folder and cache), or "
                    "start the site with --allow_new_h0 true, which costs epsilon "
                    f"{scoring.privacy.epsilon} again, within its epsilon_limit",
                )
            planned = scoring.record(scoring.scorer.sensitivity(size, num_negatives), False)
            entry = Entry(key, {}, {0: planned}, {0: digests})
            cost = ledger.total([digests], scoring.privacy.delta, [entry]).epsilon
            if not cost <= limit:
                raise RefusalError(
                    "budget",
                    f"with this release the cost would be epsilon {cost:.4g}, above the "
                    f"epsilon_limit {limit:g}",
                )

        [head], total = release_once(
            ledger,
            [key],
            {0: digests},
            scoring,
            lambda: [replace(release(), client=0)],  # a site does not choose its number
            check=check,
        )
        scoring.check_release(head, size, num_negatives)
        return head, total

    def _read_preparation(
        self, name: str, scoring: Scoring, request: Letter
    ) -> tuple[dict[str, Tensor], Tensor | None, PublicMap]:
        """h_0, h_0(x) on D^- if the scorer uses it, and the feature map."""
        fields, student = request.fields, self.students[name]
        width = int(student.feature_dim)  # type: ignore[arg-type]
        like = {f"h0/{k}": v for k, v in self._template(name).items() if not of_head(k)}
        if fields.get("center") is True:
            like["map/center"] = torch.empty(width, dtype=torch.float64, device="meta")
        if fields.get("directions") is not None:
            columns = read_count(fields, "directions", width)
            like["map/directions"] = torch.empty(width, columns, dtype=torch.float64, device="meta")
        if scoring.scorer.uses_negatives:
            rows = read_count(fields, "negatives", MAX_NEGATIVES)
            like["negatives"] = torch.empty(rows, width, device="meta")
        tensors = read_tensors(request.body, like)
        bound = read_number(fields, "bound", math.ulp(0.0), math.inf)
        public_map = PublicMap(
            tensors.get("map/center"),
            tensors.get("map/directions"),
            scoring.norm_bound == "unit",
            bound,
        )
        h0 = {k.removeprefix("h0/"): v for k, v in tensors.items() if k.startswith("h0/")}
        negatives = tensors.get("negatives")
        device = self.trainer.strategy.root_device
        return h0, None if negatives is None else negatives.to(device), public_map

    def _largest_request(self, name: str) -> int:
        """The bytes of the largest request about an architecture that this configuration allows."""
        size = largest_body(self._template(name))
        if (scoring := self.algorithm.scoring) is not None:
            width = int(self.students[name].feature_dim)  # type: ignore[arg-type]
            size += 3 * 1024 + 8 * width * (1 + width)  # a map: its center and its directions
            size += 4 * width * MAX_NEGATIVES * scoring.scorer.uses_negatives
        return size

    def _template(self, name: str) -> dict[str, Tensor]:
        return self.students[name].state_dict()

    def _is_sent(self, key: str) -> bool:
        return not self.head_only or of_head(key)

    @property
    def _local(self) -> LocalClients:
        assert isinstance(self.pool, LocalClients)  # noqa: S101 - a site's own
        return self.pool


WITHOUT_STATE = (
    "a site keeps nothing between rounds but its ledger: use optimizer_state 'reset', and no "
    "method whose clients keep tensors (Scaffold)"
)


def say(text: str) -> None:
    """Prints one line with the time, for the journal of the site.

    Parts of it come from the server: escaped, they cannot pretend to be other lines, and no
    character that cannot be printed ends the site.
    """
    line = text.encode("unicode_escape").decode()
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


def is_told(count: int, always: int) -> bool:
    """Whether the line of this number is printed: the first ones all, then 1024, 2048 and so on."""
    return count <= always or count & (count - 1) == 0


def _code(error: Exception) -> str:
    if isinstance(error, RefusalError):
        return error.code
    if isinstance(error, FloatingPointError):
        return "diverged"
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return "storage"
    return "budget" if isinstance(error, PrivacyError) else "failed"


def _guarantee(head: ReleasedHead, total: PrivacySpent | None) -> str:
    release = head.release
    if total is not None and release.is_private:
        return (
            f"{release.what}, (epsilon {release.epsilon:g}, delta {release.delta:g})-private; "
            f"spent so far: epsilon {total.epsilon:.4g} in at most {total.releases} about a record"
        )
    return f"{release.what}: NOT private (a rehearsal, or without a valid guarantee)"


def _size(body: bytes) -> str:
    return f"{len(body):,} bytes"
