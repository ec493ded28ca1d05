"""The exceptions of this package; a wrong argument raises a plain ``ValueError``."""


class FedauxError(Exception):
    """The base class of all exceptions of this package."""


class DataError(FedauxError):
    """Data that cannot be used."""


class DataNotFoundError(DataError, FileNotFoundError):
    """Data that does not exist at the given path."""


class ConfigurationError(FedauxError):
    """Settings that contradict each other."""


class PrivacyError(FedauxError):
    """A release that the claimed privacy guarantee does not cover."""
