"""One data set per client."""

import numpy as np
import pytest
import torch

from fedaux_pl.data import Digits, FederatedDataModule, NpzImages, as_source
from fedaux_pl.data.lazy_inputs import LazyInputs
from fedaux_pl.errors import DataError

X = np.random.default_rng(0).integers(0, 256, (10, 4, 4), dtype=np.uint8)


def part(first, last, labels):
    return X[first:last], labels


A = part(0, 3, [0, 2, 0]), part(3, 4, [2])
B = part(4, 8, [1, 2, 1, 3]), part(8, 10, [3, 1])


def ready(private, **options):
    data = FederatedDataModule(private, **options)
    data.setup()
    return data


@pytest.mark.parametrize(
    ("private", "names"),
    [([A, B], ["client 0", "client 1"]), ({"north": A, "south": B}, ["north", "south"])],
)
def test_every_client_has_its_data_and_the_classes_of_all(private, names):
    data = ready(private, num_clients=7)
    assert (data.client_names, data.num_clients, data.client_sizes) == (names, 2, [3, 4])
    assert data.classes == ("0", "1", "2", "3")
    assert torch.equal(data.client(1).inputs[:, 0], torch.from_numpy(X[4:8]))
    assert data.client(0).targets.tolist() == [0, 2, 0]
    test = data.test_examples
    assert (test.clients.tolist(), list(test.client_names)) == ([0, 1, 1], names)
    assert test.targets.tolist() == [2, 3, 1]
    assert torch.equal(test.inputs[:, 0], torch.from_numpy(X[[3, 8, 9]]))


def test_sources_names_of_classes_and_a_client_without_test_data(tmp_path):
    arrays = {"classes": np.array(["cat", "dog"]), "train_y": np.array([0, 1])}
    path = tmp_path / "a.npz"
    np.savez(path, train_x=X[:2], test_x=X[2:3], test_y=np.array([1]), **arrays)
    silos = {"a": NpzImages(path), "b": (part(3, 5, ["eel", "dog"]), None)}
    data = ready(silos, memory="disk")
    assert isinstance(data.client(1).inputs, LazyInputs)
    assert torch.equal(data.client(1).inputs[:][:, 0], torch.from_numpy(X[3:5]))
    assert data.classes == ("cat", "dog", "eel")
    assert data.client(0).targets.tolist() == [0, 1]
    assert data.test_examples.clients.tolist() == [0]


def test_silos_inside_silos_keep_their_test_data():
    inner = as_source("private", [(A[0], None), B])
    data = ready({"north": A, "south": inner, "east": as_source("private", [(A[0], None)])})
    assert (data.client_names, data.client_sizes) == (["north", "south", "east"], [3, 7, 3])
    assert data.test_examples.clients.tolist() == [0, 1, 1]
    assert data.test_examples.targets.tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("private", "message"),
    [
        ([A, (None, B[1])], r"client 'client 1' has no training data: add some, or leave it out"),
        ([A, (part(0, 0, []), B[1])], r"client 'client 1': .* holds no images"),
        ([(A[0], None), (B[0], None)], r"this Silos has no test data: pass a pair"),
        ([A, Digits()], r"the clients' data: got .*; expected samples of the same shape"),
    ],
)
def test_unsuitable_clients(private, message):
    with pytest.raises(DataError, match=message):
        ready(private)


def test_a_list_of_samples_is_a_data_set():
    samples = [(torch.from_numpy(image), torch.tensor(i % 2)) for i, image in enumerate(X)]
    data = ready((samples, samples), num_clients=2, alpha=100)
    assert sum(data.client_sizes) == 10
