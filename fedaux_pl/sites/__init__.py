"""A federation over real sites: the server asks over NVFlare's transport, sites answer.

The server has test and auxiliary data alone, a site its private data alone. Messages are plain
values and tensors: nothing that arrives is ever executed.

The names below are imported on first use: ``fedaux-pl sites`` needs neither torch nor Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaux_pl.sites.ledger import Ledger, PrivacySpent
    from fedaux_pl.sites.site import Site
    from fedaux_pl.sites.site_clients import SiteClients
    from fedaux_pl.sites.site_server import connect
    from fedaux_pl.sites.site_settings import Limits, Sites

_FILES = {
    "Ledger": "ledger",
    "Limits": "site_settings",
    "PrivacySpent": "ledger",
    "Site": "site",
    "SiteClients": "site_clients",
    "Sites": "site_settings",
    "connect": "site_server",
}

__all__ = ["Ledger", "Limits", "PrivacySpent", "Site", "SiteClients", "Sites", "connect"]


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"fedaux_pl.sites.{_FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
