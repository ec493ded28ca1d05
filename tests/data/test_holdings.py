"""Samples that clients hold out."""

from dataclasses import replace

import pytest
import torch

from fedaux_pl.data import Examples, FederatedDataModule, Source
from fedaux_pl.data.holdings import hold_out, renumber
from fedaux_pl.errors import DataError


def test_a_share_of_every_client_is_held_out():
    parts = [torch.arange(20), torch.arange(20, 26), torch.tensor([26])]
    kept, held = hold_out(parts, 0.25, seed=3)
    assert [len(part) for part in kept] == [15, 4, 1]
    assert sorted(torch.cat([*kept, held]).tolist()) == list(range(27))
    assert held.tolist() == sorted(held.tolist())
    assert held.tolist() != [0, 1, 2, 3, 4, 20, 21]
    assert torch.equal(hold_out(parts, 0.25, seed=3)[1], held)
    assert not torch.equal(hold_out(parts, 0.25, seed=4)[1], held)
    # a client's held-out samples do not depend on the other clients
    assert torch.equal(hold_out(parts[:1], 0.25, seed=3)[0][0], kept[0])


def test_a_client_keeps_one_sample_and_one_is_held_out_in_all():
    kept, held = hold_out([torch.arange(3), torch.tensor([3])], 0.99, seed=0)
    assert ([len(part) for part in kept], len(held)) == ([1, 1], 2)
    kept, held = hold_out([torch.arange(2), torch.arange(2, 6)], 0.01, seed=0)
    assert ([len(part) for part in kept], len(held)) == ([2, 3], 1)
    with pytest.raises(DataError, match="none of the 2 clients has more than one sample"):
        hold_out([torch.tensor([0]), torch.tensor([1])], 0.5, seed=0)


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
