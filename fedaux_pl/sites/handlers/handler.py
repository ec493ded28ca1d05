"""What all handlers of requests have in common."""

from typing import Any, NamedTuple, Protocol

from fedaux_pl.sites.wire import Message


class Reply(NamedTuple):
    """What a site answers to a request.

    Attributes:
        fields: The plain values, as a site sends them.
        body: The tensors, as ``wire.write_tensors`` has written them.
        guarantee: What has left the site, and which guarantee it has, for the journal of the site.
    """

    fields: dict[str, Any]
    body: bytes
    guarantee: str


class Handler(Protocol):
    """Answers all requests of one kind."""

    @property
    def largest_request(self) -> int:
        """The bytes of the largest request that it can accept."""

    def answer(self, client: int, request: Message) -> Reply:
        """Return the answer to a request.

        Raises a RefusalError with a code if the site refuses it, a PrivacyError if its ledger does.

        Args:
            client: The number of the client that this site is for the server, which exists.
            request: The request. Nothing else in it has been checked.
        """
