"""A federation over real sites: the server asks over NVFlare's transport, sites answer.

The server has test and auxiliary data alone, a site its private data alone. Messages are plain
values and tensors: nothing that arrives is ever executed.
"""

from fedaux_pl.sites.site import Site
from fedaux_pl.sites.site_clients import SiteClients, connect
from fedaux_pl.sites.site_settings import Limits, Sites

__all__ = ["Limits", "Site", "SiteClients", "Sites", "connect"]
