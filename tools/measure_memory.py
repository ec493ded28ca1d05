"""Measure data.memory: resident memory of a run from disk, and the time of an epoch against memory.

``python tools/measure_memory.py write FOLDER`` writes 200,000 random pictures of 64 x 64 pixels,
``python tools/measure_memory.py resident FOLDER`` runs a round of FedAVG on them from disk,
``python tools/measure_memory.py time FOLDER [TURNS]`` trains from memory and from disk, in turns of
2,048 pictures, so that other programs on the machine slow down both alike; 98 turns are an epoch.

``python tools/measure_memory.py pictures FOLDER [COUNT]`` writes JPEG files of 256 x 256 pixels of
four clients to FOLDER/train and FOLDER/test, by default 20,000 and 400, for a run at 224 x 224.

The network is one convolution of patches, so that reading takes a large part of the time;
``ARCHITECTURE=resnet8`` trains a ResNet-8 of an eighth of its width.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from torch import Tensor, nn

from fedaux_pl import ClientModule, FedAvg, FederatedDataModule, Federation, LocalTraining, register
from fedaux_pl.data import NpzImages, TensorBatches
from fedaux_pl.models import FeatureClassifier

COUNT, SHAPE, CLASSES, BATCH, TURN = 200_000, (3, 64, 64), 10, 32, 64
ARCHITECTURE, OPTIONS = os.environ.get("ARCHITECTURE", "patches"), {"width": 0.125}


@register("patches")
class Patches(FeatureClassifier):
    """One convolution of patches of 8 x 8 pixels."""

    def __init__(self, num_classes: int, *, in_channels: int = 3, width: float = 0.125) -> None:
        channels = int(256 * width)
        super().__init__(num_classes, feature_dim=channels, in_channels=in_channels)
        self.conv = nn.Conv2d(in_channels, channels, 8, stride=8)

    def feature_map(self, x: Tensor) -> Tensor:
        """Return the channels at each patch."""
        return self.conv(x).relu()


def write(folder: Path) -> None:
    """Write the arrays of NpzImages, a part at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", COUNT), ("test", 2000)):
        path, shape = folder / f"{part}_x.npy", (count, *SHAPE)
        array = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
        for start in range(0, count, 2000):
            array[start : start + 2000] = random.integers(0, 256, (2000, *SHAPE), dtype=np.uint8)
        array.flush()
        np.save(folder / f"{part}_y.npy", random.integers(0, CLASSES, count))


def write_pictures(folder: Path, count: int) -> None:
    """Write JPEG files of four clients and ten classes; coarse noise, as large as photos."""
    random = np.random.default_rng(0)
    for part, number in (("train", count), ("test", max(40, count // 50))):
        for i in range(number):
            path = folder / part / f"site{i % 4}" / f"class{i // 4 % 10}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(random.integers(0, 256, (48, 48, 3), dtype=np.uint8))
            coarse.resize((256, 256)).save(path, quality=90)


def create_data(folder: Path, memory: str, clients: int) -> FederatedDataModule:
    """Return the data of clients that hold all pictures."""
    return FederatedDataModule(NpzImages(folder), num_clients=clients, alpha=100, memory=memory)


def resident(folder: Path) -> None:
    """Run a round of four clients on all pictures from disk and print the peak memory."""
    local = LocalTraining(epochs=1, batch_size=BATCH)
    options = {"participation": 1.0, "local": local, "model_options": OPTIONS}
    federation = Federation(FedAvg(), {ARCHITECTURE: 4}, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    start = time.perf_counter()
    trainer.fit(federation, datamodule=create_data(folder, "disk", clients=4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    seconds = federation.history[0]["seconds/clients"]
    print(f"peak {peak:.2f} GB; clients {seconds:.0f} s; all {time.perf_counter() - start:.0f} s")


def measure_time(folder: Path, turns: int) -> None:
    """Train two copies of a model in turns, one from memory and one from disk."""
    epochs, spent, losses = {}, {}, {}
    for memory in ("device", "disk"):
        data = create_data(folder, memory, clients=1)
        data.setup()
        torch.manual_seed(0)
        module = ClientModule(ARCHITECTURE, CLASSES, model_options=OPTIONS)
        epochs[memory] = train_epoch(module, data.client_batches(0, BATCH))
        spent[memory] = 0.0
    for turn in range(turns):
        for memory in list(epochs)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            losses[memory] = list(islice(epochs[memory], TURN))
            spent[memory] += time.perf_counter() - start
        if losses["device"] != losses["disk"]:
            raise AssertionError("the losses differ")
        text = f"turn {turn + 1}: memory {spent['device']:.1f} s, disk {spent['disk']:.1f} s"
        print(f"{text}, {spent['disk'] / spent['device']:.3f} times as long", flush=True)


def train_epoch(module: ClientModule, batches: TensorBatches) -> Iterator[float]:
    """Yield the loss of every step of an epoch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = module.training_step(batch, index)
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "time":
        measure_time(Path(place), int(rest[0]) if rest else 98)
    elif verb == "pictures":
        write_pictures(Path(place), int(rest[0]) if rest else 20_000)
    else:
        {"write": write, "resident": resident}[verb](Path(place))
