"""A site answers requests: it looks up the handler of a request's kind, and keeps a journal."""

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedaux_pl.errors import PrivacyError, first_line
from fedaux_pl.sites import wire
from fedaux_pl.sites.agreement import differences
from fedaux_pl.sites.handlers.handler import Handler, Reply
from fedaux_pl.sites.journal import Journal
from fedaux_pl.sites.same_version import describe_difference, minor_version
from fedaux_pl.sites.wire import Message, RefusalError, expect

_MAX_DIFFERENCES = 10  # in one line of the journal
_TRACEBACK_LINES = 30


@dataclass(frozen=True)
class Dispatcher:
    """Answers requests of any kind.

    Attributes:
        agreement: The settings that server and sites share, which every request repeats.
        num_clients: The number of clients of the federation, whose numbers a request can have.
        handlers: The handler of each kind of request.
        journal: Has a line for each request and one for its answer.
    """

    agreement: Mapping[str, Any]
    num_clients: int
    handlers: Mapping[str, Handler]
    journal: Journal

    @property
    def largest_request(self) -> int:
        """The bytes of the largest request that a handler can accept."""
        return max(handler.largest_request for handler in self.handlers.values())

    def answer(self, request: Message) -> Message:
        """Return the answer to a request, or the code that states why there is none."""
        token = str(request.fields.get("request", ""))[:64]
        kind = str(request.fields.get("kind", "?"))[:20]
        if kind == "hello":  # the server wants to know whether this site still answers
            return Message({"request": token})
        about = kind
        round_ = request.fields.get("round")
        if round_ is not None:
            about += f", round {str(round_)[:12]}"
        self.journal.log_line(f"asked: {about}, {len(request.body):,} bytes received", "asked")
        start = time.monotonic()
        try:
            reply = self._dispatch(request)
        except Exception as error:
            return self._refuse(token, about, error)
        seconds = time.monotonic() - start
        size = f"{len(reply.body):,} bytes after {seconds:.1f} s"
        self.journal.log_line(f"sent: {about}, {size}; {reply.guarantee}", f"sent: {kind}")
        return Message({"request": token, **reply.fields}, reply.body)

    def _dispatch(self, request: Message) -> Reply:
        """Return the reply of the handler, if the server has the same settings as this site."""
        fields = request.fields
        self._check_agreement(fields.get("agreement"))
        client = wire.read_count(fields, "client", self.num_clients - 1)
        handler = self.handlers.get(str(fields.get("kind")))
        if handler is None:
            raise RefusalError("message", "its kind is unknown")
        return handler.answer(client, request)

    def _check_agreement(self, received: object) -> None:
        """Raise a RefusalError unless the server has the same version and the same settings."""
        if isinstance(received, Mapping):
            difference = describe_difference(received.get("version"), "this site", "the server")
            expect(difference is None, str(difference), "settings")
        lines = differences(self.agreement, received)
        reason = "; ".join(lines[:_MAX_DIFFERENCES])
        if len(lines) > _MAX_DIFFERENCES:
            reason += f"; and {len(lines) - _MAX_DIFFERENCES:,} more"
        expect(not lines, reason, "settings")

    def _refuse(self, token: str, about: str, error: Exception) -> Message:
        """Return the code of an error, and log the text of the error, which must not leave."""
        code = _code_of(error)
        if code == "failed":
            for line in traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]:
                self.journal.log_line(f"  {line}", "traceback")
        fields = {"request": token, "code": code}
        sent = f"the code {code!r}"
        if code == "settings":
            fields["version"] = minor_version()
            sent += " and the version"
        reason = f"{first_line(error)} (sent: only {sent})"
        self.journal.log_line(f"NOT answered: {about}: {reason}", "NOT answered")
        return Message(fields)


def _code_of(error: Exception) -> str:
    """Return the code by which the server learns of an error."""
    if isinstance(error, RefusalError):
        return error.code
    if isinstance(error, FloatingPointError):
        return "diverged"
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return "storage"
    return "budget" if isinstance(error, PrivacyError) else "failed"
