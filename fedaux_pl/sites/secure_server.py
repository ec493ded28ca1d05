"""The secure sums of the server: it asks for keys, then for masked vectors, and adds them up.

The keys of an attempt are kept in the state folder before the second step begins: a server that is
killed there repeats that step, and sites that have sent their masked vectors send the same bytes.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.files import state_folder, write_json_atomically
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import Privacy
from fedaux_pl.sites.secure_site import masked_like
from fedaux_pl.sites.secure_sum import add_masked, read_keys
from fedaux_pl.sites.wire import FINAL, Message, RefusalError, read_tensors

Ask = Callable[[str, Sequence[str], Mapping[str, Any], State], Iterator[tuple[str, Any]]]
"""Sends a request of a kind to sites and yields their answers, or RefusalErrors."""

_RETRY = 2.0  # seconds before sites are asked again
_LATER = ("absent", "busy")  # a site may answer later
_REPEATS = 3  # of the second step, for sites whose answer was lost


@dataclass
class Collector:
    """Collects secure sums.

    Attributes:
        ask: Asks sites.
        privacy: The options of the sums.
        tell: Prints a line.
        wait: The seconds for which an attempt waits for enough sites.
        least: The number of sites that a sum needs.
        attempts: The attempts so far, of all sums.
    """

    ask: Ask
    privacy: Privacy
    tell: Callable[[str], None]
    wait: float
    least: int
    attempts: int = 0
    _number: int = 0  # of the last attempt, which rises over all servers

    def collect(self, digest: str, names: Sequence[str], length: int) -> tuple[list[str], Tensor]:
        """Return the sites of a secure sum, and the sum.

        Args:
            digest: A, which names the sum.
            names: The sites that have computed their vectors.
            length: That of the vectors.

        Raises:
            ConfigurationError: If the attempts that the budget pays for have failed.
        """
        start, lost = time.monotonic(), 0
        path = state_folder() / "secure_sums" / f"{digest}.json"
        attempt = _read_attempt(path)
        is_new = False  # an attempt of an earlier run was paid for then
        while True:
            if attempt is None:
                is_new, attempt = True, self._keys(digest, names)
                write_json_atomically(path, attempt)
            self.attempts, joined = self.attempts + 1, sorted(attempt["keys"])
            answers, refusals = self._masked(digest, attempt, length)
            try:
                total = add_masked(answers, joined)
            except RefusalError as error:
                reasons = [f"{name}: {first_line(why)}" for name, why in refusals.items()]
                reason = "; ".join(reasons) or first_line(error)
                self.tell(f"secure sum, attempt {self.attempts} failed: {reason}")
            else:
                seconds = time.monotonic() - start
                size = 8 * length * len(answers) / 1e6
                self.tell(
                    f"secure sum over {', '.join(joined)}: {length:,} numbers, attempt "
                    f"{self.attempts}, {size:.2f} MB, {seconds:.1f} s"
                )
                return joined, total
            if not is_new and any(error.code in _LATER for error in refusals.values()):
                raise ConfigurationError(
                    f"an earlier run began this secure sum with sites that are absent ({reason}): "
                    f"start them, or delete {path}, which costs the others one more attempt"
                )
            names = [n for n in names if n not in refusals or refusals[n].code not in FINAL]
            self.check(names, reason)
            lost += is_new and bool(answers)  # if none has left a site, nothing was spent
            if lost >= self.privacy.attempts:
                raise ConfigurationError(
                    f"the secure sum failed in {lost} of {self.privacy.attempts} attempts, which "
                    f"cost the sites their budget ({reason}): agree on more privacy.attempts in "
                    "run.yaml (each has its part of epsilon), or on a higher --epsilon_limit"
                )
            attempt = None
            time.sleep(_RETRY)

    def check(self, names: Sequence[str], reason: str = "the others are absent or refuse") -> None:
        """Raise a ConfigurationError unless there are enough sites."""
        if len(names) < self.least:
            raise ConfigurationError(
                f"a secure sum needs {self.least} sites, but has {', '.join(names) or 'none'} "
                f"({reason}): start the others, agree with them on the same run.yaml, within their "
                "limits, or set privacy.sums to local"
            )

    def _keys(self, digest: str, names: Sequence[str]) -> dict[str, Any]:
        """Step 1, until enough sites have sent keys; it costs nothing."""
        start = time.monotonic()
        while True:
            self._number = number = max(self._number + 1, int(100 * time.time()))
            fields = {"sum": digest, "attempt": number, "sites": len(names)}
            keys, reasons = {}, []
            for name, answer in self.ask("keys", names, fields, {}):
                try:
                    if isinstance(answer, RefusalError):
                        raise answer
                    message = answer.fields.get("keys")
                    if read_keys(message, digest, number, self.privacy.pins).name != name:
                        raise RefusalError("message", "it is of another site")
                    keys[name] = message
                except RefusalError as error:
                    reasons.append(f"no key of {name}: {first_line(error)}")
                    names = [n for n in names if n != name or error.code not in FINAL]
            if len(keys) >= self.least:
                for text in reasons:
                    self.tell(text)
                return {"attempt": number, "keys": keys}
            is_late = time.monotonic() - start > self.wait
            self.check(list(keys) if is_late else names, "; ".join(reasons))
            time.sleep(_RETRY)

    def _masked(
        self, digest: str, attempt: Mapping[str, Any], length: int
    ) -> tuple[dict[str, tuple[str, Tensor]], dict[str, RefusalError]]:
        """Step 2: the answers and the refusals; sites whose answer is lost are asked again."""
        fields = {
            "sum": digest,
            "attempt": attempt["attempt"],
            "messages": list(attempt["keys"].values()),
        }
        answers: dict[str, tuple[str, Tensor]] = {}
        refusals: dict[str, RefusalError] = {}
        for _ in range(_REPEATS):
            missing = [name for name in attempt["keys"] if name not in answers]
            for name, answer in self.ask("masked", missing, fields, masked_like(length)):
                if isinstance(answer, Message):
                    try:
                        vector = read_tensors(answer.body, masked_like(length))["masked"]
                        answers[name] = str(answer.fields.get("transcript")), vector
                        refusals.pop(name, None)
                    except RefusalError as error:
                        refusals[name] = error
                else:
                    refusals[name] = answer
            if all(error.code not in _LATER for error in refusals.values()):
                break
            time.sleep(_RETRY)
        return answers, refusals


def _read_attempt(path: Path) -> dict[str, Any] | None:
    """Return the number and the keys of an attempt that an earlier run began; None for none."""
    if not path.is_file():
        return None
    try:
        attempt = json.loads(path.read_text())
        return {"attempt": int(attempt["attempt"]), "keys": dict(attempt["keys"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({type(error).__name__}): restore it, or delete it, which costs "
            "sites that have sent their vectors one more attempt"
        ) from error
