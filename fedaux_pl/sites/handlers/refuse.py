"""Refuses requests that this configuration or the owner of this site does not allow."""

from dataclasses import dataclass

from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.wire import Message, RefusalError


@dataclass(frozen=True)
class Refuse:
    """Refuses every request with the same code and the same reason."""

    code: str
    reason: str
    largest_request: int = 0

    def answer(self, client: int, request: Message) -> Reply:
        """Raise a RefusalError."""
        raise RefusalError(self.code, self.reason)
