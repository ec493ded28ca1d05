"""The certificates in a kit: who owns them, and whether another member can accept them."""

from datetime import UTC, datetime
from pathlib import Path

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.sites.kit import find_credentials, startup_folder

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise ConfigurationError(
        "real sites need cryptography: run pip install -e '.[sites]' in the clone of fedaux-pl"
    ) from error


def certificate_name(kit: Path) -> str:
    """Return the common name in the certificate of a site."""
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


def check_certificate(kit: Path, side: str) -> None:
    """Raise a ConfigurationError if no other member can accept the certificate of a kit.

    The certificate must be valid now, belong to the key beside it, and be signed by the root
    certificate beside it. Otherwise the transport would try to connect forever and print nothing.
    """
    files = find_credentials(kit, side)
    path, key_path, root_path = (files[name] for name in (f"{side}_cert", f"{side}_key", "ca_cert"))
    certificate, *issuers = _read_certificates(path)
    roots = _read_certificates(root_path)
    for file, one in ((path, certificate), (root_path, roots[0])):
        _check_validity(file, one)
    if _read_key(key_path).public_key() != certificate.public_key():
        raise ConfigurationError(
            f"{key_path.absolute()} is not the key of {path.name} beside it: use the kit as it was "
            "provisioned, or provision again"
        )
    if not any(_is_signed_by(certificate, issuer) for issuer in [*issuers, *roots]):
        raise ConfigurationError(
            f"{path.absolute()} is not signed by {root_path.name} beside it, so it is of another "
            "federation: use the kit as it was provisioned, or provision again"
        )


def _read_certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise _damaged(path, error) from error


def _read_key(path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # a TypeError if the key has a password
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{path.absolute()} cannot be read ({first_line(error)}): use the kit as it was "
        "provisioned, or provision again"
    )


def _check_validity(path: Path, certificate: x509.Certificate) -> None:
    start = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if now > end:
        raise ConfigurationError(f"{path.absolute()} has expired on {_date(end)}: provision again")
    if now < start:
        raise ConfigurationError(
            f"{path.absolute()} is valid only from {_date(start)} on: set the clock, which says "
            f"{_date(now)}, or wait"
        )


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
