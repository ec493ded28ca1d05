"""The server asks sites again and again until enough of them have answered."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.sites.codes import REPEATED
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.wire import Message, RefusalError

_RETRY = 2.0  # seconds before sites are asked again
_BARS = {"prepare": "releases", "train": "clients"}
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class AnswerCollector:
    """Collects the answers of sites that are needed to go on.

    Attributes:
        requests: Asks each site once.
        progress: Shows how many sites have answered.
        lr: The learning rate of clients, for the advice if their training diverges.
    """

    requests: SiteRequests
    progress: FederationProgress
    lr: float

    def collect(
        self,
        kind: str,
        requests: Mapping[str, Message],
        read: Callable[[str, Message], _Answer],
        needed: int,
        round_: int | None = None,
    ) -> dict[str, _Answer]:
        """Return at least ``needed`` answers by the names of the sites.

        A site that refuses a request is not asked again. One that fails or is absent is asked again
        as long as there are too few answers, and is left out otherwise.

        Args:
            kind: The kind of the requests.
            requests: The request to each site, by the name of the site.
            read: Reads and checks the answer of a site, given its name.
            needed: The number of answers without which the run cannot go on.
            round_: The number of the round; None before the first one.
        """
        answers: dict[str, _Answer] = {}
        refusals: dict[str, str] = {}  # the codes of sites that are not asked again
        about = kind if round_ is None else f"round {round_}"
        with self.progress.stage(_BARS[kind], len(requests), "site") as stage:
            while True:
                missing = [n for n in requests if n not in answers and n not in refusals]
                if len(missing) + len(answers) < needed:
                    raise ConfigurationError(self._describe_too_few(kind, needed, refusals))
                present = self.requests.await_sites(missing, needed - len(answers))
                present_requests = {name: requests[name] for name in present}
                for name, answer in self.requests.ask(kind, present_requests, read):
                    if isinstance(answer, RefusalError):
                        if answer.code in REPEATED:
                            refusals[name] = answer.code
                        log_line(f"{name} gave no answer to {about}: {first_line(answer)}")
                        continue
                    answers[name] = answer
                    stage.update(1)
                    if round_ is not None:
                        self.requests.status.change(name, last_round=round_)
                if len(answers) >= needed:
                    for name in missing:
                        if name not in present:
                            log_line(f"{name} is absent in {about}")
                    return answers
                time.sleep(_RETRY)

    def _describe_too_few(self, kind: str, needed: int, refusals: Mapping[str, str]) -> str:
        codes = ", ".join(f"{name}: {code}" for name, code in refusals.items())
        advice = (
            "agree with them on the same version of fedaux-pl and the same run.yaml, within their "
            "limits"
        )
        if "diverged" in refusals.values():
            advice = f"lower local.lr (--model.local.lr), which is {self.lr:g}"
        return f"{kind}: {needed} answers are needed, but sites refuse ({codes}): {advice}"
