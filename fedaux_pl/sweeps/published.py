"""The numbers that a paper has published for the cells of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sweeps.yaml_nodes import check_names, mapping, plain


@dataclass(frozen=True)
class Published:
    """Published accuracies in percent, means over the seeds.

    Attributes:
        source: Where they stand.
        axes: The axes that they depend on.
        values: Nested mappings of labels, one for each axis in this order.

    Example:
        >>> table = Published("Tab. 1", ("method", "C"), {"FedAVG": {"0.2": "19.9"}})
        >>> table.value({"method": "FedAVG", "C": "0.2"}), table.value({"method": "FedAVG"})
        ('19.9', None)
    """

    source: str
    axes: tuple[str, ...]
    values: Mapping[str, Any]

    def value(self, coordinates: Mapping[str, str]) -> str | None:
        """The published number of a cell as it is written; None if there is none."""
        found: Any = self.values
        for axis in self.axes:
            found = found.get(coordinates.get(axis))
            if found is None:
                return None
        return str(found)


def read_published(node: yaml.Node, axes: Mapping[str, Sequence[str]]) -> Published:
    """Reads the entry ``published`` of a sweep file.

    Raises:
        ConfigurationError: If it lacks a part, or names an axis or a label that the sweep has not.
    """
    entry: Any = plain(node) if mapping(node, "published") else {}
    check_names("published", entry, ("source", "axes", "values"))
    for part in ("source", "axes", "values"):
        if part not in entry:
            raise ConfigurationError(f"published needs source, axes and values, but lacks {part}")
    order = [entry["axes"]] if isinstance(entry["axes"], str) else entry["axes"]
    check_names("published: axes", order, axes)
    _check(entry["values"], order, axes)
    return Published(entry["source"], tuple(order), entry["values"])


def _check(values: Any, order: Sequence[str], axes: Mapping[str, Sequence[str]]) -> None:
    if not order:
        if not isinstance(values, str):
            raise ConfigurationError(
                f"published: values must end in numbers after its axes, but has {values} there"
            )
        return
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"published: values needs labels of {order[0]}, but has {values} there"
        )
    check_names(f"published: values: {order[0]}", values, axes[order[0]])
    for below in values.values():
        _check(below, order[1:], axes)
