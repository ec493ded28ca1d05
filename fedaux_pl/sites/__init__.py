"""A federation over real sites: the server sends requests over NVFlare's transport, sites answer.

The server holds only test and auxiliary data; each site holds only its private data. Messages are
plain values and tensors: nothing that arrives is ever executed.

Where to find what:

- Both sides: ``messages/`` (the format of each kind of request), ``wire`` (messages as bytes),
  ``codes``, ``agreement``, ``site_settings``, ``adapt_algorithm``, ``same_version``, ``names``.
- The site: ``site`` (the table from kinds of requests to handlers), ``dispatcher``, ``handlers/``,
  ``received_models``, ``own_examples``, ``site_sums``, ``final_model``, ``journal``.
- What a site has released: ``ledger``, ``ledger_keys`` (frozen texts), ``budget``, ``new_pixels``.
- The server: ``site_server``, ``site_clients`` (the ``ClientPool``), ``site_releases``,
  ``server_sums``, ``answer_collector``, ``willing_sites``, ``site_requests``, ``first_results``,
  ``site_status``, ``server_log``.
- Secure sums: ``secure_sum`` (only the protocol).
- The network: ``transport``, ``listener``, ``message_filter``, ``tls``, ``kit``, ``certificates``,
  ``provisioning``.

The names below are imported on first use, because ``fedaux-pl sites`` needs neither torch nor
Lightning.
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
