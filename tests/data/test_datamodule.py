import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl.data import AuxiliaryDataModule, Digits, Examples, FederatedDataModule, Source
from fedaux_pl.errors import DataError
from fedaux_pl.modules import ClientModule


class Counting(Source):
    """Sample i is an image with all pixels equal to i, which identifies it in every split."""

    def __init__(self, n=200, shape=(1, 2, 2), labeled=True, start=0):
        self.n, self.shape, self.labeled, self.start = n, shape, labeled, start
        self.loads = 0

    def train(self):
        self.loads += 1
        x = (torch.arange(self.n) + self.start).to(torch.uint8).view(-1, 1, 1, 1)
        labels = torch.arange(self.n) % 4 if self.labeled else None
        return Examples(x.expand(-1, *self.shape).contiguous(), labels, tuple("abcd"))

    def test(self):
        return self.train()


def ready(**options):
    defaults = {"private": Counting(), "auxiliary": Counting(100), "num_clients": 7, "alpha": 0.1}
    module = FederatedDataModule(**(defaults | options))
    module.setup()
    return module


def identity(inputs):
    return inputs[:, 0, 0, 0].tolist()


def test_every_private_sample_has_one_owner_and_keeps_its_label():
    module = ready()
    clients = [module.client(i) for i in range(7)]
    assert sorted(sum((identity(c.inputs) for c in clients), [])) == list(range(200))
    assert module.client_sizes == [len(c) for c in clients]
    assert max(module.client_sizes) - min(module.client_sizes) <= 1
    for client in clients:
        assert (client.labels == client.inputs[:, 0, 0, 0].long() % 4).all()
        assert client.classes == tuple("abcd") == module.classes
    assert module.input_shape == (1, 2, 2)


def test_negatives_and_distillation_data_are_a_disjoint_split_of_the_auxiliary_data():
    module = ready()
    negatives, distill = identity(module.negative_inputs), identity(module.distill_inputs)
    assert (len(negatives), len(distill)) == (20, 80)
    assert sorted(negatives + distill) == list(range(100))
    assert negatives != list(range(20))


def test_seed_determines_all_splits_and_orders():
    one, two, other = ready(seed=1), ready(seed=1), ready(seed=2)
    assert identity(one.negative_inputs) == identity(two.negative_inputs)
    assert identity(one.negative_inputs) != identity(other.negative_inputs)
    assert all(
        torch.equal(a, b) for a, b in zip(one.client_indices, two.client_indices, strict=True)
    )
    assert not torch.equal(one.client_indices[0], other.client_indices[0])

    def order(module, **options):
        return sum((identity(x) for x, _ in module.client_batches(3, 4, **options)), [])

    assert order(one) == order(two)
    assert order(one) != order(one, seed=1)


def test_client_batches_hold_the_data_of_that_client():
    module = ready(num_clients=5)
    batches = module.client_batches(2, batch_size=16)
    seen = sum((identity(x) for x, _ in batches), [])
    assert sorted(seen) == identity(module.client(2).inputs)
    assert all((y == x[:, 0, 0, 0].long() % 4).all() for x, y in batches)


def test_a_client_with_a_single_sample_still_trains():
    module = ready(private=Counting(8), num_clients=8)
    assert len(list(module.client_batches(0))) == 1


def test_distillation_inputs_and_targets_stay_aligned():
    module = ready()
    targets = module.distill_inputs[:, 0, 0, 0].float()
    seen = []
    for x, y in module.distill_batches(targets, batch_size=16, seed=3):
        assert (x[:, 0, 0, 0].float() == y).all()
        seen += identity(x)
    assert sorted(seen) == identity(module.distill_inputs)


def test_setup_loads_once():
    module = ready()
    module.setup("test")
    assert module.private.loads == 2  # training and test data
    assert module.auxiliary.loads == 1


def test_a_trainer_tests_on_the_test_data():
    module = FederatedDataModule(Digits(), Digits(), num_clients=3)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    client = ClientModule("resnet8", 10, model_options={"in_channels": 1, "width": 0.125})
    (metrics,) = trainer.test(client, module, verbose=False)
    test = Digits().test()
    client.eval()
    with torch.no_grad():
        accuracy = (client(test.inputs).argmax(1) == test.labels).float().mean()
    assert metrics["test_accuracy"] == pytest.approx(accuracy.item())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_clients": 0}, ValueError, "num_clients must be at least 1, but is 0"),
        ({"num_clients": 201}, ValueError, "use at most 200 clients"),
        ({"alpha": 0.0}, ValueError, "alpha must be positive and finite, but is 0.0"),
        ({"negatives": 1.0}, ValueError, "strictly between 0 and 1, but is 1.0"),
        ({"auxiliary": Counting(1)}, DataError, "1 auxiliary samples leave"),
        ({"auxiliary": Counting(9, (3, 2, 2))}, DataError, r"\(1, 2, 2\) and \(3, 2, 2\)"),
        ({"private": Counting(labeled=False)}, DataError, "Counting has no labels"),
    ],
)
def test_wrong_federated_data(options, error, message):
    with pytest.raises(error, match=message):
        ready(**options)


def test_errors_before_setup_without_auxiliary_data_and_for_unknown_clients():
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        FederatedDataModule(Counting()).client(0)
    without = ready(auxiliary=None)
    with pytest.raises(DataError, match="no auxiliary data"):
        _ = without.distill_inputs
    with pytest.raises(IndexError, match=r"0 \.\.\. 6, but got 7"):
        without.client(7)


def test_auxiliary_batches_are_shuffled_and_the_probe_is_validation_data():
    module = AuxiliaryDataModule(Counting(100), probe=Counting(30), batch_size=16, seed=3)
    module.setup()
    seen = sum((identity(x) for (x,) in module.train_dataloader()), [])
    assert sorted(seen) == list(range(100))
    assert seen != list(range(100))
    neighbors, queries = module.val_dataloader()
    assert len(neighbors.tensors[0]) == len(queries.tensors[0]) == 30


def test_wrong_auxiliary_data():
    with pytest.raises(ValueError, match="batch_size must be at least 2"):
        AuxiliaryDataModule(Counting(), batch_size=1)
    with pytest.raises(DataError, match="auxiliary and probe data"):
        AuxiliaryDataModule(Counting(), probe=Counting(9, (3, 2, 2))).setup()
    module = AuxiliaryDataModule(Counting(), probe=Counting(labeled=False))
    module.setup()
    with pytest.raises(DataError, match="no labels"):
        module.val_dataloader()
