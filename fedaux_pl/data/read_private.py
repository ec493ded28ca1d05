"""Reads and checks the parts of the private data, with one numbering of classes and clients."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedaux_pl.data.input_checks import check_same_kind, shorten
from fedaux_pl.data.lazy_inputs import Memory, keep_in_host
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, did_you_mean


@dataclass(frozen=True)
class PrivateParts:
    """The parts of the private data that a source has and that this process holds."""

    training: Examples | None  # None at the server of real sites
    test: Examples | None  # None at a real site
    validation: Examples | None  # None if the source has no validation data


def read_private(
    source: Source,
    held_parts: Collection[str],
    class_order: Sequence[str],
    site_names: Sequence[str],
    memory: Memory,
) -> PrivateParts:
    """Read the parts of the private data that this process holds.

    Classes and clients of all parts get the same numbers. A part that lacks labels, names an
    unknown class or client, or has inputs of another shape or dtype raises a DataError.

    Args:
        source: The source of the private data.
        held_parts: The parts to read, of ``train`` and ``test``. Validation data are read with the
            test data.
        class_order: The agreed names of the classes; empty for those of the first part.
        site_names: The names of the clients if they are real sites; empty for the names in the
            training data.
        memory: Where images stay.
    """
    parts: dict[str, Examples] = {}
    if "train" in held_parts:
        parts["training"] = source.train()
    if "test" in held_parts:
        parts["test"] = source.test()
        validation = source.validation()
        if validation is not None:
            parts["validation"] = validation
    first_name, first = next(iter(parts.items()))
    classes = tuple(class_order or first.classes)
    client_names = first.client_names if first_name == "training" else tuple(site_names)
    for name, examples in parts.items():
        if examples.labels is None:
            raise DataError(
                f"{type(source).__name__} has no labels for its {name} data: the private data must "
                "be labeled"
            )
        check_same_kind(first.inputs, examples.inputs, f"private {first_name} and {name} data")
        if memory != "device":
            examples = replace(examples, inputs=keep_in_host(examples.inputs))
        examples = renumber(examples, "class", classes, name)
        parts[name] = renumber(examples, "client", client_names, name)
    return PrivateParts(
        training=parts.get("training"),
        test=parts.get("test"),
        validation=parts.get("validation"),
    )


def check_several_classes(training: Examples) -> None:
    """Raise a DataError if all training samples are of one class."""
    if len(torch.unique(training.targets)) < 2:
        only_class = training.classes[int(training.targets[0])]
        raise DataError(
            f"the private training data must have at least 2 classes, but all {len(training)} "
            f"samples are of class {only_class!r}: check the labels"
        )


def renumber(
    examples: Examples, kind: Literal["class", "client"], names: tuple[str, ...], part: str
) -> Examples:
    """Number the classes or the clients of examples by their positions in a tuple of agreed names.

    Args:
        examples: The examples; without labels or clients, respectively, they are returned as is.
        kind: What is numbered: ``class`` for labels and classes, ``client`` for clients.
        names: The agreed names; empty if there is no agreement, which changes nothing.
        part: The name of the examples in the message for an unknown name, such as "test".
    """
    if kind == "class":
        numbers = examples.labels
        former_names = examples.classes
        remedy = "set data.classes to all names"
        agreement = "classes are"
    else:
        numbers = examples.clients
        former_names = examples.client_names
        remedy = "leave out its samples"
        agreement = "clients that train are"
    if numbers is None or not names or former_names == names:
        return examples
    for name in former_names:
        if name not in names:
            raise DataError(
                f"the {part} data name the {kind} {name!r}{did_you_mean(name, names)}, but the "
                f"{agreement} {shorten(names)}: correct the name, or {remedy}"
            )
    new_numbers = torch.tensor([names.index(name) for name in former_names], device=numbers.device)
    if kind == "class":
        return replace(examples, labels=new_numbers[numbers], classes=names)
    return replace(examples, clients=new_numbers[numbers], client_names=names)
