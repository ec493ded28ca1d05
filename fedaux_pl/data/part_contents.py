"""A part of a data set whose labels have no numbers yet, because its classes are not known."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.data.labels import Labels, distinct_classes, number_labels
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples


@dataclass(frozen=True)
class PartContents:
    """The inputs of a part, with their labels as the caller gives them: names or integers."""

    inputs: Inputs
    labels: Labels | None = None  # None without labels
    class_names: tuple[str, ...] = ()  # that integer labels are positions in; empty if unknown
    clients: Tensor | None = None  # as in Examples
    client_names: tuple[str, ...] = ()

    def find_classes(self, class_order: Sequence[str]) -> tuple[str, ...]:
        """Return the agreed classes or, without an agreement, those that the labels name."""
        if class_order:
            return tuple(class_order)
        return self.class_names or distinct_classes(self.labels or [])

    def number(self, classes: tuple[str, ...]) -> Examples:
        """Return the examples, with each label as a position in ``classes``."""
        if self.labels is None:
            return Examples(self.inputs)
        labels = number_labels(self.labels, classes, self.class_names)
        return Examples(self.inputs, labels, classes, self.clients, self.client_names)
