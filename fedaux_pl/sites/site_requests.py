"""Requests of the server to sites, and what comes back: an answer, or why there is none."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedaux_pl.errors import PrivacyError, first_line
from fedaux_pl.sites.codes import CODES
from fedaux_pl.sites.same_version import describe_difference
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import ANSWERED, SiteStatus, tell
from fedaux_pl.sites.wire import Message, RefusalError, expect, read_basis

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.transport import ServerTransport

_PAUSE = 0.2  # seconds between two looks for sites
_HELLO = 5.0  # seconds in which a site says that it is there
_T = TypeVar("_T")


@dataclass
class SiteRequests:
    """Asks sites over the transport; every request has the ``agreement``."""

    transport: "ServerTransport"
    status: SiteStatus
    sites: Sites
    agreement: Mapping[str, Any]
    _suspects: set[str] = field(default_factory=set)  # did not answer in time
    _waited: bool = False

    def ask(
        self, kind: str, questions: Mapping[str, Message], read: Callable[[str, Message], _T]
    ) -> Iterator[tuple[str, _T | RefusalError]]:
        """Ask sites once, and yield each answer as it is read, or why there is none."""
        there = self._alive([name for name in self.transport.connected() if name in questions])
        requests = {}
        for name in there:
            fields = {
                "kind": kind,
                "client": self.sites.names.index(name),
                "request": secrets.token_hex(16),
                "agreement": self.agreement,
                **questions[name].fields,
            }
            requests[name] = replace(questions[name], fields=fields)
        for name, message in self.transport.ask(requests, self.sites.timeout):
            answer: _T | RefusalError
            outcome: Any
            try:
                received = self._check(name, requests[name], message)
                answer = read(name, received)
                outcome = read_basis(received) if kind in ANSWERED else None
            except (RefusalError, PrivacyError) as error:
                outcome = getattr(error, "code", "message")
                answer = RefusalError(outcome, first_line(error))
            self.status.change(name, **{ANSWERED.get(kind, "last_code"): outcome})
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
        is_current = answer.fields.get("request") == request.fields["request"]
        expect(is_current, "it has answered an earlier request")
        code = answer.fields.get("code")
        if code is not None:
            known = code if isinstance(code, str) and code in CODES else "failed"
            reason = None
            if known == "settings":  # as sites of other versions answer
                version = answer.fields.get("version")
                reason = describe_difference(version, "this server", "the site")
            raise RefusalError(known, f"{reason or CODES[known]} (code {known})")
        return answer

    def await_sites(self, names: Sequence[str], needed: int) -> list[str]:
        """Wait for all sites at first, then for as many as needed; return those that answer."""
        start = time.monotonic()
        has_printed = False
        while True:
            there = [name for name in self.transport.connected() if name in names]
            seconds = time.monotonic() - start
            is_late = seconds > (0 if self._waited else self.sites.wait)
            if len(there) == len(names) or (is_late and len(there) >= needed):
                self._waited = True
                return self._alive(there)
            if not has_printed and seconds > 1:
                has_printed = True
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
