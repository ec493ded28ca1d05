"""The texts under which sites and servers store what has been released. They are frozen.

A ledger finds an earlier release only if the text of its key is the same, byte for byte. If a text
changed, every site would take its earlier releases for new ones: it would refuse them, or pay their
epsilon again. Therefore nothing in this file may ever change, neither a word, nor an order, nor the
way in which a number is written. `tests/sites/test_ledger_keys.py` has one whole text of each kind,
most of them copied from ledgers of earlier versions.

Three texts come from elsewhere and are frozen as well: ``Step.settings``, the fingerprints of data
(``fedaux_pl.data.fingerprints``), and the description of h_0 in `first_map_key`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedaux_pl.data.cache import CacheKey, tensor_digest
from fedaux_pl.scoring import RELEASE_VERSION, Privacy, PublicMap, ReleasedHead, Step

AGREEMENT_FORMAT = 1
"""The entry ``format`` of the settings that server and sites share, which is in `sum_digest`.

It is 1 in all versions: the entry ``version`` decides whether two sides can talk to each other.
"""

MASKED_VECTOR = "masked"
"""The name of the masked vector among the tensors of an entry, and in the answer of a site."""

RIGHT_ANSWERS = "right"
"""The name of the noisy number of right answers among the tensors of an entry."""


class Attempt(NamedTuple):
    """An attempt at a secure sum, in which one masked vector leaves a site."""

    digest: str  # of the sum, see ``sum_digest``
    number: int
    transcript: str  # the hash of the key messages
    names: str  # of the sites, joined by ", "


@dataclass(frozen=True)
class ReleaseKey:
    """The key of an entry in the ledger, in parts: ``str(key)`` is its text.

    Attributes:
        start: The models.
        received: The tensors and numbers that the server has sent.
        end: The settings of the release, and the fingerprint of the data.
        attempt: The attempt at a secure sum; None for a release with local noise.
        earlier: The release that must be in the ledger before this one.
    """

    start: str
    received: str = ""
    end: str = ""
    attempt: Attempt | None = None
    earlier: "ReleaseKey | None" = None

    def __str__(self) -> str:
        attempt = "" if self.attempt is None else " ".join(["", "sum", *map(str, self.attempt)])
        return f"{self.start}{self.received}{attempt}{self.end}"

    def is_same_release(self, text: str) -> bool:
        """Return whether a text belongs to this release, in any attempt."""
        is_same = text == f"{self.start}{self.received}{self.end}"
        return is_same or self.attempt_of(text) is not None

    def differs_in_received(self, text: str) -> bool:
        """Return whether a text has the same settings and data, but the server had sent others."""
        has_same_settings = text.startswith(self.start) and text.endswith(self.end)
        return bool(self.received) and has_same_settings and not self.is_same_release(text)

    def attempt_of(self, text: str) -> Attempt | None:
        """Return the attempt at this secure sum to which a text belongs; None for other texts."""
        before = f"{self.start}{self.received} sum "
        if not text.startswith(before) or not text.endswith(self.end):
            return None
        joined = text.removeprefix(before).removesuffix(self.end)
        digest, number, transcript, names = joined.split(" ", 3)
        return Attempt(digest, int(number), transcript, names)


def release_key(
    architecture: str,
    model_options: Mapping[str, Any],
    step: Step,
    received: Sequence[Tensor],
    bound: float,
    data: str,
    held_out: float,
) -> ReleaseKey:
    """Return the key of a client's release.

    Args:
        architecture: The architecture of the client.
        model_options: The option ``model_options`` of the federation.
        step: The step in which the client releases.
        received: The tensors that the server has sent: h_0, the feature map, h_0(x) on D^- if the
            release uses it, and the classifier of a later step.
        bound: The bound on the norm of rows.
        data: The fingerprint of the private data.
        held_out: The fraction of the records that the site holds out of training and releases.
    """
    # mappings and numbers are written as Python's ``repr`` writes them, here and below
    start = f"{architecture} {model_options} "
    end = f" {step.settings()} {data}"
    if held_out:  # the release is about fewer records; 0 adds nothing, as before this option
        end += f" without {held_out}"
    return ReleaseKey(start, f"{tensor_digest(*received)} {bound!r}", end)


def evaluation_key(
    architectures: Sequence[str],
    model_options: Mapping[str, Any],
    privacy: Privacy,
    data: str,
    received: str,
) -> ReleaseKey:
    """Return the key of a noisy evaluation.

    Args:
        architectures: The architectures of the federation.
        model_options: The option ``model_options`` of the federation.
        privacy: The privacy of one evaluation.
        data: The fingerprint of the test data.
        received: The digest of the models that the server has sent.
    """
    models = f"{list(architectures)} {model_options}"
    options = f"{privacy.epsilon} {privacy.delta}"
    # RELEASE_VERSION is 1 and belongs to the code of releases. The whole text is ``start``, because
    # evaluations of other models are not refused: they are allowed as long as the budget lasts.
    return ReleaseKey(f"evaluation {RELEASE_VERSION} {models} {options} {data} {received}")


def agreement_digest(agreement: Mapping[str, object]) -> str:
    """Return the SHA-256 of what all sites have agreed on, for which every key is signed.

    Examples:
        >>> agreement_digest({"b": 1, "a": 2}) == agreement_digest({"a": 2, "b": 1})
        True
    """
    return hashlib.sha256(json.dumps(dict(agreement), sort_keys=True).encode()).hexdigest()


def sum_digest(
    agreement: Mapping[str, Any],
    architecture: str,
    step: Step,
    h0: Mapping[str, Tensor],
    public_map: PublicMap,
) -> str:
    """Return the digest of all that determines a secure sum, which is the same everywhere.

    Only these settings of the agreement are in it. So a run with another seed or another local
    training uses the same sum, for which sites do not pay again.
    """
    sent = step.scorer.tensors()
    tensors = [*h0.values(), *public_map.tensors().values(), *sent.values()]
    return agreement_digest(
        {
            # the other entries of the agreement do not change the sum
            **{name: agreement[name] for name in ("format", "model_options", "classes")},
            "architecture": architecture,
            "secret": step.scoring.privacy.secret,  # false in a rehearsal
            "release": step.settings(),
            "received": tensor_digest(*tensors),
            "bound": public_map.bound,
        }
    )


def first_map_key(
    architecture: str, h0: str, step: Step, auxiliary_data: str, negative_rows: Tensor
) -> CacheKey:
    """Return the key of the feature map that a server has first sent to an architecture.

    Args:
        architecture: The architecture.
        h0: The description of its h_0.
        step: The first step of releases.
        auxiliary_data: The fingerprint of D_aux.
        negative_rows: The rows of D_aux that are D^-.
    """
    settings = step.settings()
    return {
        # the start of a file name, in which the slash of a library's name cannot stand
        "kind": f"map-{architecture.replace('/', '_')}",
        "h0": h0,
        "map": _as_json({name: settings[name] for name in ("feature_map", "norm_bound")}),
        "data": auxiliary_data,
        "rows": tensor_digest(negative_rows),
        "negatives": int(step.scorer.uses_negatives),  # whether h_0(x) on D^- is stored, too
    }


def first_classifier_key(step: Step, heads: Sequence[ReleasedHead]) -> CacheKey:
    """Return the key of the classifier that a server has first sent in a later step.

    ``heads`` are the first releases of the clients, whose noise no other run has.
    """
    return {
        "kind": "sent",  # the start of a file name
        "heads": tensor_digest(*[head.weight for head in heads]),
        "release": _as_json(step.settings()),
    }


def _as_json(settings: Mapping[str, Any]) -> str:
    """Return settings as text; unlike ``repr``, it does not depend on their order."""
    return json.dumps(settings, sort_keys=True, default=str)
