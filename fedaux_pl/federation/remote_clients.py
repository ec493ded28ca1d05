"""The seam for clients that do not run in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.lightning import pl
from fedaux_pl.scoring import Guarantee


class RemoteClients(Protocol):
    """Real sites, as the package ``fedaux_pl.sites`` connects them to a federation."""

    @property
    def h0_folder(self) -> Path | None:
        """A folder of h_0 that are never learned again, because releases depend on them."""

    @property
    def privacy_notes(self) -> Sequence[str]:
        """What else leaves the clients, a sentence each."""

    @property
    def unprotected(self) -> Sequence[Guarantee]:
        """The same as rows of the table of guarantees."""

    def check(self, trainer: pl.Trainer) -> None:
        """Raise a ConfigurationError if the Trainer's options do not fit."""

    def create_pool(self, clients: LocalClients) -> ClientPool:
        """Return the clients; ``clients`` are those that would run in this process."""
