from tests.sweeps.conftest import _shared_resolver, resolver  # noqa: F401 - fixtures
