"""Parts of the private data get one numbering of classes and clients."""

from dataclasses import replace

import pytest
import torch

from fedaux_pl.data import Examples, FederatedDataModule, Source
from fedaux_pl.data.read_private import renumber
from fedaux_pl.errors import DataError


def test_labels_are_renumbered_on_their_device(monkeypatch):
    monkeypatch.setattr(Examples, "__post_init__", lambda self: None)  # meta tensors have no values
    labels = torch.zeros(4, dtype=torch.int64, device="meta")
    examples = Examples(torch.zeros(4, 1, device="meta"), labels, ("dog", "cat"))
    assert renumber(examples, "class", ("cat", "dog"), "test").targets.device == labels.device


class Sites(Source):
    """Two clients that train, and test samples of given names."""

    def __init__(self, names, owners, trained=("north", "south"), train_owners=(0, 0, 1, 1)):
        self.owners = torch.tensor(owners)
        self.names, self.trained, self.train_owners = names, trained, torch.tensor(train_owners)

    def train(self):
        images, labels = torch.arange(4).view(4, 1, 1, 1), torch.tensor([0, 1, 0, 1])
        named = {"clients": self.train_owners, "client_names": self.trained} if self.trained else {}
        return Examples(images.float(), labels, ("cat", "dog"), **named)

    def test(self):
        count = len(self.owners)
        images, labels = torch.zeros(count, 1, 1, 1), torch.zeros(count, dtype=torch.int64)
        return Examples(images, labels, ("cat", "dog"), self.owners, self.names)


def test_clients_of_test_data_are_numbered_as_those_that_train():
    data = FederatedDataModule(Sites(("south",), [0, 0]), validation_fraction=0.5)
    data.setup()
    assert data.test_examples.client_names == tuple(data.client_names) == ("north", "south")
    assert data.test_examples.clients.tolist() == [1, 1]
    held = data.validation_examples  # its owners are known, too
    assert held.clients.tolist() == [0, 1] == (held.inputs.flatten() // 2).tolist()
    own = FederatedDataModule(Sites(("photo", "art"), [0, 1], trained=()), num_clients=2, alpha=9.0)
    own.setup()  # a Dirichlet split: test data keep their own names
    assert own.test_examples.client_names == ("photo", "art")


def test_classes_in_a_list_become_a_tuple():
    class Listed(Sites):
        def train(self):
            return replace(super().train(), classes=["cat", "dog"])

    data = FederatedDataModule(Listed(("north",), [0]))
    data.setup()
    assert data.classes == data.test_examples.classes == ("cat", "dog")


def test_unknown_and_empty_clients_are_refused():
    with pytest.raises(DataError, match=r"name the client 'nort' \(did you mean north\?\), but"):
        FederatedDataModule(Sites(("nort",), [0])).setup()
    with pytest.raises(DataError, match="client 'south' has no training sample: remove its name"):
        FederatedDataModule(Sites(("north",), [0], train_owners=(0, 0, 0, 0))).setup()
