"""The server asks what the owner of a site need not allow: evaluations and votes."""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from fedaux_pl.errors import first_line
from fedaux_pl.sites.codes import FINAL
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.wire import Message, RefusalError

_NOUNS = {"evaluate": "metrics", "vote": "votes"}
_Answer = TypeVar("_Answer")


class WillingSites:
    """Asks each site once, and no more after it has refused for good.

    A refusal ends nothing. The server logs it when it is new.
    """

    def __init__(self, requests: SiteRequests) -> None:
        self.requests = requests
        # by kind of request: the code of each site that did not answer the last request
        self._codes: dict[str, dict[str, str]] = defaultdict(dict)

    def ask(
        self, kind: str, round_: int, request: Message, read: Callable[[str, Message], _Answer]
    ) -> dict[str, _Answer]:
        """Return the answers to a request that is the same for all sites, by their names.

        Args:
            kind: The kind of the request.
            round_: The number of the round.
            request: The request.
            read: Reads and checks the answer of a site, given its name.
        """
        codes = self._codes[kind]
        names = [name for name in self.requests.sites.names if codes.get(name) not in FINAL]
        answers = {}
        for name, answer in self.requests.ask(kind, dict.fromkeys(names, request), read):
            code = ""
            if isinstance(answer, RefusalError):
                code = answer.code
                if codes.get(name) != code:
                    since = f"from round {round_} on"
                    log_line(f"no {_NOUNS[kind]} of {name} {since}: {first_line(answer)}")
            else:
                answers[name] = answer
            codes[name] = code
        return {name: answers[name] for name in names if name in answers}
