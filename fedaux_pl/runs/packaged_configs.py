"""The configuration files that come with the package."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "configs"
_SWEEPS = "paper"  # the folder of sweep files, which fit does not take


def config_names() -> list[str]:
    """Return the package's configurations, such as ``quickstart`` and ``methods/feddf``."""
    paths = (path for path in FOLDER.rglob("*.yaml") if path.parent.name != _SWEEPS)
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in paths)
