"""The package in a project that imports ``lightning.pytorch``: test_lightning.py runs this script.

It is a process of its own because a process uses only one of the two packages.
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import fedaux_pl.lightning
from fedaux_pl import ClientModule, DistillationModule, FedAUX, ScoringHead, SimCLR, create_model
from tests.federations import create, fit, weights

IMAGES = torch.rand(16, 1, 8, 8)
LABELS = torch.arange(16) % 4


def train_modules():
    """Train each module alone, under a Trainer of ``lightning.pytorch``."""
    network = create_model("resnet8", num_classes=4, in_channels=1, width=0.125)
    features = network.features(IMAGES).detach()
    train(SimCLR(network), IMAGES)
    train(ClientModule(network), IMAGES, LABELS)
    train(DistillationModule(network), IMAGES, torch.full((16, 4), 0.25))
    train(ScoringHead(), features, LABELS % 2)


def train(module, *tensors):
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(*tensors), batch_size=8))
    assert trainer.state.finished


def save_every_round(folder):
    return pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)


def continue_run(folder):
    """Run two rounds, and resume the first round of a run under ``pytorch_lightning``."""
    options = {"callbacks": [save_every_round(folder / "lightning")], "enable_checkpointing": True}
    whole = create(FedAUX())
    fit(folder, whole, rounds=2, **options)
    resumed = create(FedAUX())
    fit(folder, resumed, rounds=2, ckpt_path=folder / "pytorch_lightning" / "epoch=0.ckpt")
    torch.save({"whole": weights(whole), "resumed": weights(resumed)}, folder / "weights.pt")


if __name__ == "__main__":
    train_modules()
    continue_run(Path(sys.argv[1]))
    assert fedaux_pl.lightning.PACKAGE == "lightning.pytorch"
    assert "pytorch_lightning" not in sys.modules
