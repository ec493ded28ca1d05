"""The private updates of a site (``local.privacy``): within its limit, each sent only once."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation import Federation, UpdatePrivacy
from fedaux_pl.files import state_folder, write_atomically
from fedaux_pl.functional import SampledGaussian
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring.budget import Budget, NewRelease, ReleaseKey
from fedaux_pl.scoring.release import VERSION, update_cost


@dataclass(frozen=True)
class PrivateTraining:
    """Answers a request for training with a stored update, or with a new one.

    An update is a release: it has an entry in the ledger before it leaves, which costs the steps of
    the round. A request with the same round and the same model gets the stored update again. The
    file of an update is named by the checksum of its content, which the entry has.

    Attributes:
        federation: The federation of the site.
        privacy: That of the updates.
        budget: The ledger and the limits of the site.
    """

    federation: Federation
    privacy: UpdatePrivacy
    budget: Budget

    def answer(
        self,
        asked: str,
        state: State,
        steps: SampledGaussian,
        train: Callable[[], bytes],
    ) -> tuple[bytes, str]:
        """Return the tensors of an update, written by ``train``, and its guarantee.

        ``asked`` is what the server chooses besides the model ``state``, ``steps`` is what the
        round costs.
        """
        federation = self.federation
        cost = update_cost(steps, self.privacy.clip_norm, self.privacy.delta)
        new: dict[str, bytes] = {}

        def release() -> NewRelease:
            body = train()
            checksum = hashlib.sha256(body).hexdigest()
            new[checksum] = body
            if self.budget.ledger is not None:  # no rehearsal
                path = state_folder() / "updates" / checksum
                write_atomically(path, lambda file: file.write(body), private=True)
            name = torch.tensor(list(checksum.encode()), dtype=torch.uint8)
            return {"update": name}, {0: cost}

        data = federation.data
        # in all ledgers: do not change it
        settings = federation.settings()
        about = f"{federation.model_options} {settings['local']} {settings['algorithm']} "
        about += f"{federation.trained} {steps}"
        contents = f"{data.fingerprints['private']} {data.validation_fraction}"
        key = f"update {VERSION} {asked} {about} {tensor_digest(*state.values())} {contents}"
        tensors, total = self.budget.release_once(ReleaseKey(key), release, cost)
        checksum = bytes(tensors["update"].tolist()).decode()
        if total is None:
            return new[checksum], f"{cost.what}: NOT private (a rehearsal)"
        return new.get(checksum) or _read(checksum), f"{cost.what}, {total.describe_one(cost)}"


def _read(checksum: str) -> bytes:
    path = state_folder() / "updates" / checksum
    body = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(body).hexdigest() != checksum:
        raise PrivacyError(
            f"the ledger has this update, but its file {path} is missing or damaged, and to train "
            "again would cost privacy again: restore it from a backup"
        )
    return body
