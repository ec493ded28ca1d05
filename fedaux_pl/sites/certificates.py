"""The certificates in a kit: whose they are."""

from pathlib import Path

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.sites.kit import startup_folder

try:
    from cryptography import x509
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise ConfigurationError("real sites need NVFlare: pip install 'fedaux-pl[sites]'") from error


def certificate_name(kit: Path) -> str:
    """Return the common name in a site's certificate."""
    path = startup_folder(kit) / "client.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path.absolute()} is no certificate of a site ({first_line(error)}): give "
            "certificates the folder that nvflare provision has written for it"
        ) from error
    return str(name.value)
