"""The kit of a server or a site: the folder with its key and certificates, closed to others."""

import os
import shlex
import stat
from pathlib import Path

from fedaux_pl.errors import ConfigurationError

PROJECT_FILE = "project.yml"
"""The file in which NVFlare describes a federation, in the folder that ``sites init`` writes."""


def find_credentials(kit: Path, side: str) -> dict[str, Path]:
    """Return the files of a kit by NVFlare's names for them.

    Raises a ConfigurationError if a file is missing.

    Args:
        kit: The folder that NVFlare's provisioning has written, or its folder ``startup``.
        side: ``server`` or ``client``, which is part of the names of the files.
    """
    names = {"ca_cert": "rootCA.pem", f"{side}_cert": f"{side}.crt", f"{side}_key": f"{side}.key"}
    folder = startup_folder(kit)
    files = {option: folder / name for option, name in names.items()}
    for path in files.values():
        if not path.is_file():
            raise ConfigurationError(
                f"there is no {path.absolute()}: give certificates the folder that nvflare "
                f"provision has written for this {side}"
            )
    return files


def check_secrecy(kit: Path, side: str) -> None:
    """Raise a ConfigurationError if other users can read the key of a kit, or the root key.

    Whoever has the root key can sign certificates in any name. NVFlare writes this key with mode
    0644 to the workspace that it provisions. Therefore ``sites init`` puts the workspace into a
    closed folder.
    """
    check_closed(find_credentials(kit, side)[f"{side}_key"])
    member = startup_folder(kit.resolve())
    if member.name == "startup":
        member = member.parent
    if len(member.parents) < 4:  # the folder of ``sites init``/kits/PROJECT/prod_00/MEMBER
        return
    _, workspace, _, folder, *_ = member.parents
    root_key = workspace / "state" / "cert.json"
    if (folder / PROJECT_FILE).is_file():
        check_closed(folder)
    elif root_key.is_file():
        check_closed(root_key)


def check_closed(path: Path) -> None:
    """Raise a ConfigurationError if other users can enter a folder or read a file with keys.

    A file that belongs to another user, such as root, may be open to its group, because this
    process may be allowed to read it as a member of the group.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    others = 0o077 if status.st_uid == os.getuid() else 0o007
    if mode & others:
        closed = f"{mode & ~others:o}"
        raise ConfigurationError(
            f"{path} must be closed to other users because of its keys, but its mode is "
            f"{mode:04o}: run chmod {closed} {shlex.quote(str(path))}"
        )


def startup_folder(kit: Path) -> Path:
    """Return the folder with the files of a kit, which provisioning puts into ``startup``."""
    return kit / "startup" if (kit / "startup").is_dir() else kit
