"""Requests of the server to sites: each gets an answer, or the reason why there is none."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedaux_pl.errors import PrivacyError, first_line
from fedaux_pl.sites.codes import ABSENT, CODES
from fedaux_pl.sites.same_version import describe_difference
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import OPTIONAL_ENTRIES, SiteStatus
from fedaux_pl.sites.wire import Message, RefusalError, expect, read_basis

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.transport import ServerTransport

_PAUSE = 0.2  # seconds before the server looks again which sites are connected
_HELLO_TIMEOUT = 5.0  # seconds in which a site must answer the request ``hello``
_T = TypeVar("_T")


@dataclass
class SiteRequests:
    """Sends requests over the transport; every request repeats the ``agreement``."""

    transport: "ServerTransport"
    status: SiteStatus
    sites: Sites
    agreement: Mapping[str, Any]
    _suspects: set[str] = field(default_factory=set)  # sites that did not answer in time
    _has_waited: bool = False  # for all sites, at the start of the run

    def ask(
        self, kind: str, requests: Mapping[str, Message], read: Callable[[str, Message], _T]
    ) -> Iterator[tuple[str, _T | RefusalError]]:
        """Ask sites once, and yield the name of each with its answer, or why there is none.

        Args:
            kind: The kind of the requests.
            requests: The request to each site, by the name of the site.
            read: Reads the answer of a site, given its name. It raises a RefusalError or a
                PrivacyError for an answer that cannot be used.
        """
        connected = [name for name in self.transport.connected() if name in requests]
        present = self._leave_out_silent(connected)
        complete = {}
        for name in present:
            fields = {
                "kind": kind,
                "client": self.sites.names.index(name),
                "request": secrets.token_hex(16),
                "agreement": self.agreement,
                **requests[name].fields,
            }
            complete[name] = replace(requests[name], fields=fields)
        for name, message in self.transport.ask(complete, self.sites.timeout):
            answer: _T | RefusalError
            outcome: Any
            try:
                received = self._check(name, complete[name], message)
                answer = read(name, received)
                outcome = read_basis(received) if kind in OPTIONAL_ENTRIES else None
            except (RefusalError, PrivacyError) as error:
                outcome = error.code if isinstance(error, RefusalError) else "message"
                answer = RefusalError(outcome, first_line(error))
            self.status.change(name, **{OPTIONAL_ENTRIES.get(kind, "last_code"): outcome})
            yield name, answer
        for name in requests:
            if name not in present:
                yield name, RefusalError(ABSENT, "it is not connected")

    def _check(self, name: str, request: Message, answer: Message | None) -> Message:
        """Return the answer to this very request; raise a RefusalError for a code or no answer."""
        if answer is None:
            self._suspects.add(name)
            raise RefusalError(ABSENT, "it did not answer in time, or its connection broke")
        self._suspects.discard(name)
        is_current = answer.fields.get("request") == request.fields["request"]
        expect(is_current, "it has answered an earlier request")
        sent_code = answer.fields.get("code")
        if sent_code is None:
            return answer
        code = sent_code if isinstance(sent_code, str) and sent_code in CODES else "failed"
        reason = None
        if code == "settings":  # its version may be the difference
            version = answer.fields.get("version")
            reason = describe_difference(version, "this server", "the site")
        raise RefusalError(code, f"{reason or CODES[code]} (code {code})")

    def await_sites(self, names: Sequence[str], needed: int) -> list[str]:
        """Wait until enough of these sites are connected, and return those that answer.

        At the start of the run all of them are enough, for at most ``sites.wait`` seconds; later
        ``needed`` of them are.
        """
        start = time.monotonic()
        has_printed = False
        while True:
            connected = [name for name in self.transport.connected() if name in names]
            seconds = time.monotonic() - start
            is_late = seconds > (0 if self._has_waited else self.sites.wait)
            if len(connected) == len(names) or (is_late and len(connected) >= needed):
                self._has_waited = True
                return self._leave_out_silent(connected)
            if not has_printed and seconds > 1:
                has_printed = True
                absent = ", ".join(name for name in names if name not in connected)
                log_line(f"waiting for {absent}")
            time.sleep(_PAUSE)

    def _leave_out_silent(self, names: Sequence[str]) -> list[str]:
        """Return the sites without those that did not answer in time and do not answer now."""
        hello = Message({"kind": "hello", "request": ""})
        suspects = {name: hello for name in names if name in self._suspects}
        answers = self.transport.ask(suspects, _HELLO_TIMEOUT)
        silent = {name for name, answer in answers if answer is None}
        self._suspects -= set(suspects) - silent
        return [name for name in names if name not in silent]
