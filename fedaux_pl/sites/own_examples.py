"""Test and validation data of a site, which only this site has."""

from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.lazy_inputs import keep_in_host
from fedaux_pl.data.read_private import renumber


def adapt_own_examples(examples: Examples, data: FederatedDataModule) -> Examples:
    """Return test or validation examples with the numbers of the classes of the federation.

    Raises an error if they have other classes, or inputs unlike those of the training data.
    """
    examples = renumber(examples, "class", tuple(data.classes), "own")
    check_same_kind(data.all_inputs[0], examples.inputs, "training and other data of this site")
    return Examples(keep_in_host(examples.inputs), examples.targets, examples.classes)
