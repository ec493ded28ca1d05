"""Connects a federation at the server with its sites."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.sites.site import WITHOUT_STATE
from fedaux_pl.sites.site_clients import SiteClients
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import SiteStatus


@contextmanager
def connect(
    federation: Federation, data: FederatedDataModule, sites: Sites, root: Path
) -> Iterator[None]:
    """Runs the clients of a federation at real sites while the block runs.

    ``with connect(federation, data, sites, root): trainer.fit(federation, datamodule=data)``

    Args:
        federation: The federation.
        data: The server's data, with ``holds="public"``.
        sites: The sites and how to reach them.
        root: The folder of ``sites.json``, which says who is connected.

    Raises:
        ConfigurationError: If settings do not fit, the certificates are not there, NVFlare is not
            installed, or the port is taken.
    """
    from fedaux_pl.sites.transport import ServerHub

    attach(federation, data, sites)
    status = SiteStatus(root / "sites.json", sites.names)
    with ServerHub(sites, status) as hub:
        federation.create_pool = partial(SiteClients, hub, status, sites, federation)
        yield


def attach(federation: Federation, data: FederatedDataModule, sites: Sites) -> None:
    """Checks that a federation can run over sites, names its clients and makes noise secret."""
    count = len(federation.architectures)
    if len(sites.names) != count:
        raise ConfigurationError(
            f"sites.names has {len(sites.names)} sites, but the federation has {count} clients "
            f"{federation.clients}: give each site one client"
        )
    if data.holds != "public":
        raise ConfigurationError(
            f"data.holds must be public at the server of sites, but is {data.holds}: set "
            "data.holds to public (fedaux-pl sites init writes it to sites.yaml)"
        )
    if federation.algorithm.has_payload or federation.carry:
        raise ConfigurationError(WITHOUT_STATE)
    if not sites.rehearsal:
        federation.algorithm.use_secret_noise()
    data.site_names = list(sites.names)
