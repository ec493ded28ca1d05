"""The exceptions a user can meet, beside plain ``ValueError`` for a wrong argument."""


class FedauxError(Exception):
    """Base of every error that this package defines."""


class DataError(FedauxError):
    """Data that was found, but cannot be used as it is."""


class DataNotFoundError(DataError, FileNotFoundError):
    """Data that is not where it was looked for."""


class ConfigurationError(FedauxError):
    """Settings that do not go together."""


class PrivacyError(FedauxError):
    """A release that the claimed privacy guarantee would not cover."""
