"""Answers ``keys``: the site makes a key for an attempt at a secure sum."""

from dataclasses import dataclass

from fedaux_pl.sites import wire
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages import keys
from fedaux_pl.sites.site_sums import SiteSums
from fedaux_pl.sites.wire import Message


@dataclass(frozen=True)
class Keys:
    """Makes keys, which cost nothing."""

    sums: SiteSums

    @property
    def largest_request(self) -> int:
        """The bytes of a request without tensors."""
        return wire.largest_body({})

    def answer(self, client: int, request: Message) -> Reply:
        """Return the key message of this site."""
        asked = keys.read_request(request)
        key_message = self.sums.create_key(asked.digest, asked.attempt, asked.sites)
        return Reply(*keys.write_answer(key_message), "a key, which does not depend on data")
