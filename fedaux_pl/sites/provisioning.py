"""The files from which NVFlare's own tool makes certificates, and instructions for them."""

from pathlib import Path
from typing import Any

import yaml

from fedaux_pl.errors import ConfigurationError, check_setting
from fedaux_pl.files import create_folder, write_text_atomically
from fedaux_pl.sites.kit import PROJECT_FILE, check_closed
from fedaux_pl.sites.names import PROFILE, check_names

PROJECT = "fedaux"
MIN_SITES = 3  # the fewest sites of a secure sum
_BUILDERS = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")


def write_project(sites: str, server: str, port: int = 8402, folder: Path = Path("sites")) -> str:
    """Write project.yml for ``nvflare provision``, sites.yaml for ``fit``, and instructions.

    Also write the files of NVFlare's distributed provisioning, for keys that never leave a site: a
    profile, and one file for each participant. Return the instructions as text.

    Args:
        sites: The names of the sites, separated by commas.
        server: The host name of the server, without its port.
        port: The port of the server.
        folder: The folder to write to.
    """
    names = [name.strip() for name in sites.split(",")]
    check_names(names, server)
    check_setting("port", port, 0 < port < 2**16, "lie in 1 ... 65535")
    if (folder / PROJECT_FILE).exists():
        raise ConfigurationError(
            f"{(folder / PROJECT_FILE).absolute()} exists: choose another --folder, or remove it"
        )
    create_folder(folder, private=True)
    check_closed(folder)  # it may have existed before
    members: list[dict[str, Any]] = [
        {"name": server, "type": "server", "org": PROJECT, "fed_learn_port": port},
        *({"name": name, "type": "client", "org": PROJECT} for name in names),
    ]
    project = {
        "api_version": 3,
        "name": PROJECT,
        "description": "fedaux-pl over real sites",
        "participants": members,
        "builders": [{"path": f"nvflare.lighter.impl.{builder}"} for builder in _BUILDERS],
    }
    kits = folder / "kits" / PROJECT / "prod_00"
    settings = {"names": names, "certificates": str(kits / server), "host": server, "port": port}
    profile = {
        "name": PROJECT,
        "scheme": "grpc",
        "connection_security": "mtls",
        "server": {"host": server, "fed_learn_port": port, "admin_port": port},
    }
    files: dict[str, Any] = {
        PROJECT_FILE: project,
        "sites.yaml": {"sites": settings, "data": {"holds": "public"}},
        f"own_keys/{PROFILE}.yml": profile,
    }
    for member in members:
        files[f"own_keys/{member['name']}.yml"] = {"name": PROJECT, "participants": [member]}
    text = _NEXT.format(
        folder=folder, kits=kits, host=server, port=port, sites=", ".join(names), first=names[0]
    )
    if len(names) >= MIN_SITES:
        text += _SECURE.format(pins=", ".join(f"{name}: PIN" for name in names))
    texts = {name: yaml.safe_dump(content, sort_keys=False) for name, content in files.items()}
    for name, content in (texts | {"NEXT.txt": text + "\n"}).items():
        write_text_atomically(folder / name, content)
    return text


_NEXT = """\
Written to {folder}: project.yml, sites.yaml and own_keys/ (this text is NEXT.txt).

1. Certificates, on this machine:
     nvflare provision -p {folder}/project.yml -w {folder}/kits
2. Send each of {sites} its own folder {kits}/SITE over a channel that you trust, and
   the run.yaml that all share. {kits.parent}/state has the root key, with which anybody can sign
   certificates in any name: keep it to yourself, and {folder} closed to other users (mode 0700).
   server.yaml names the server's data, my_data.yaml those of a site: see examples/sites/.
3. Server:  fedaux-pl fit --config run.yaml --config server.yaml --config {folder}/sites.yaml
4. Site:    fedaux-pl site --config run.yaml --config my_data.yaml --server {host}:{port} \\
              --certificates SITE --epsilon_limit 1

To keep each key at its site (NVFlare's distributed provisioning), do this instead of 1 and 2:
     here:    nvflare cert init --profile {folder}/own_keys/profile.yml -o {folder}/ca
              and send own_keys/SITE.yml and the printed fingerprint of the root certificate
     site:    nvflare cert request -p {first}.yml          sends {first}.request.zip back
     here:    nvflare cert approve {first}.request.zip -c {folder}/ca \\
                --profile {folder}/own_keys/profile.yml    sends {first}.signed.zip back
     site:    nvflare package {first}.signed.zip --request-dir {first} --fingerprint FINGERPRINT
   The server does the same with own_keys/{host}.yml and packs to -w {folder}/kits."""

_SECURE = """

Secure sums, before 3: the server sees only the sum over all sites, so that the same epsilon needs
less noise. They exist for methods that release class statistics, such as FedClassMeans.
     site:      fedaux-pl sites pin --certificates SITE    makes its signing key, prints its pin
     run.yaml:  privacy: {{epsilon: 1.0, secure: {{pins: {{{pins}}}}}}}
                under model.algorithm.init_args
     site:      --epsilon_limit_alone EPSILON in 4: what its own noise alone may cost
   Each site compares these pins with the other sites, for example by phone: whoever passes them on
   could replace them by pins of its own and read every vector."""

PINNED = """\
  {name}: {pin}
Add this line to privacy.secure.pins (under model.algorithm.init_args) of the run.yaml that all
share. Then compare the pins of your run.yaml with the other sites, over a channel that is not the
server."""
