import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedaux_pl.data import TensorBatches


def epochs(batches, count):
    return [torch.cat([x for (x,) in batches]).tolist() for _ in range(count)]


def test_without_shuffling_equals_a_dataloader():
    x, y = torch.arange(10), torch.arange(10) * 2
    ours = list(TensorBatches(x, y, batch_size=4))
    theirs = list(DataLoader(TensorDataset(x, y), batch_size=4))
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_every_epoch_has_every_sample_once_in_a_new_order():
    x = torch.arange(50)
    first, second = epochs(TensorBatches(x, batch_size=8, shuffle=True), 2)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    for a, b in TensorBatches(x, -x, batch_size=7, shuffle=True):  # which stay aligned
        assert torch.equal(a, -b)


def test_order_depends_on_seed_and_epoch_only():
    def batches(seed):
        return TensorBatches(torch.arange(50), batch_size=8, shuffle=True, seed=seed)

    assert epochs(batches(3), 3) == epochs(batches(3), 3)
    assert epochs(batches(3), 1) != epochs(batches(4), 1)
    later = batches(3)
    later.set_epoch(2)
    assert epochs(later, 1)[0] == epochs(batches(3), 3)[2]


def test_smallest_drops_a_last_batch_of_one():
    batches = TensorBatches(torch.arange(9), batch_size=4, smallest=2, shuffle=True)
    assert len(batches) == len(list(batches)) == 2
    assert len(TensorBatches(torch.arange(9), batch_size=4)) == 3
    assert len(TensorBatches(torch.arange(10), batch_size=4, smallest=2)) == 3
    left_out = {(set(range(9)) - set(epoch)).pop() for epoch in epochs(batches, 30)}
    assert len(left_out) > 3


class Recorder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.seen.append([])
        self.seen[-1] += batch[0].tolist()
        return self.layer(batch[0].float()[:, None]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(module, path, max_epochs, ckpt_path=None):
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=max_epochs,
        default_root_dir=path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = TensorBatches(torch.arange(10), batch_size=4, shuffle=True, seed=7)
    trainer.fit(module, batches, ckpt_path=ckpt_path)
    return trainer


def test_order_under_a_trainer_depends_on_the_epoch_after_resuming_too(tmp_path):
    whole, half, rest = Recorder(), Recorder(), Recorder()
    fit(whole, tmp_path, 4)
    expected = epochs(TensorBatches(torch.arange(10), batch_size=4, shuffle=True, seed=7), 4)
    assert whole.seen == expected
    fit(half, tmp_path, 2).save_checkpoint(tmp_path / "half.ckpt")
    fit(rest, tmp_path, 4, ckpt_path=tmp_path / "half.ckpt")
    assert half.seen + rest.seen == expected


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ((torch.zeros(3), torch.zeros(4)), {}, r"got \[3, 4\]; expected to .*first dimension"),
        ((), {}, r"got \[\]; expected to .*first dimension"),
        ((torch.zeros(3),), {"batch_size": 0}, "batch_size: got 0; expected to be at least 1"),
    ],
)
def test_wrong_arguments(tensors, options, message):
    with pytest.raises(ValueError, match=message):
        TensorBatches(*tensors, **({"batch_size": 2} | options))
