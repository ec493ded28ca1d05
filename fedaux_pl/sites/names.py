"""Which names a server and its sites can have together.

A certificate holds the name of its owner, who can pose as anybody with an equal name. NVFlare
writes the name of every member into its certificate as a host name, and host names ignore case: a
site named ``LOCALHOST`` would have a certificate of the server ``localhost``. The names are also
used as names of files.
"""

import re
from collections.abc import Sequence

from fedaux_pl.errors import check_setting

PROFILE = "profile"
"""The name of the file in ``own_keys`` that belongs to no member."""
_RESERVED = ("server", PROFILE)  # "server" is the name of the server on the transport
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_MAX_HOST = 64  # a certificate has no room for more
NAME = "be letters, digits, - and _ (at most 63, and not 'server' or 'profile')"


def is_name(name: str) -> bool:
    """Return whether a site can have this name.

    Examples:
        >>> [is_name(name) for name in ("hospital-a", "Server", "a.b", "--")]
        [True, False, False, False]
    """
    pattern = "(?=[_-]*[A-Za-z0-9])[A-Za-z0-9_-]{1,63}"
    return name.lower() not in _RESERVED and re.fullmatch(pattern, name) is not None


def is_host(host: str) -> bool:
    """Return whether a server can have this host name or IPv4 address, which has no wildcard.

    Examples:
        >>> [is_host(host) for host in ("fl.example.org", "10.0.0.1", "", "*.org", "a:8402")]
        [True, True, False, False, False]
    """
    is_dotted = re.fullmatch(rf"({_LABEL}\.)*{_LABEL}", host) is not None
    return is_dotted and len(host) <= _MAX_HOST and host.lower() != PROFILE


def check_names(sites: Sequence[str], host: str) -> None:
    """Raise a ValueError unless sites and their server can have these names together."""
    for name in sites:
        check_setting("the name of a site", name, is_name(name), NAME)
    folded = [name.lower() for name in sites]
    is_valid = 0 < len(folded) == len(set(folded))
    expected = "be different, also if case is ignored, one or more"
    check_setting("the names of sites", list(sites), is_valid, expected)
    expected = f"be a host name, without a port (at most {_MAX_HOST} characters, not {PROFILE!r})"
    check_setting("server", host, is_host(host), expected)
    expected = "differ from the names of sites, also if case is ignored"
    check_setting("host", host, host.lower() not in folded, expected)
