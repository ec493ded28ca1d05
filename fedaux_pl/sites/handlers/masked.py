"""Answers ``masked``: the site sends its masked vector of a secure sum."""

from dataclasses import dataclass

from fedaux_pl.sites import wire
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages import masked
from fedaux_pl.sites.site_sums import SiteSums
from fedaux_pl.sites.wire import Message


@dataclass(frozen=True)
class Masked:
    """Sends the masked vector of an attempt, which costs the epsilon of the sum."""

    sums: SiteSums

    @property
    def largest_request(self) -> int:
        """The bytes of a request without tensors."""
        return wire.largest_body({})

    def answer(self, client: int, request: Message) -> Reply:
        """Return the masked vector; asked again, return the same bytes at no cost."""
        asked = masked.read_request(request)
        sent, guarantee = self.sums.mask(asked.digest, asked.attempt, asked.key_messages)
        return Reply(*masked.write_answer(*sent), guarantee)
