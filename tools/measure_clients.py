"""Measure how a federation grows with its clients: memory, checkpoint and CPU seconds.

``python tools/measure_clients.py FOLDER [FIGURE]`` runs three rounds of FedAVG, FedDF and FedAUX
with 10, 100, 1,000 and 10,000 clients of 5 synthetic images each, of which at most 100 train in a
round, each in a process of its own. It prints a table and draws the figure.

The network is one convolution of patches, so that what the federation itself does takes a large
part of the time. All clients share 5,000 public images, 4,000 of them for distillation.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedaux_pl import (
    Distillation,
    FedAUX,
    FedAvg,
    FedDF,
    FederatedDataModule,
    Federation,
    LocalTraining,
    Pretraining,
    register,
)
from fedaux_pl.models import FeatureClassifier

METHODS = {"FedAVG": FedAvg, "FedDF": lambda: FedDF(remember=True), "FedAUX": FedAUX}
COUNTS, IMAGES, SELECTED, ROUNDS, PUBLIC, CLASSES = (10, 100, 1000, 10_000), 5, 100, 3, 5000, 10
UNITS = {
    "memory": "peak memory, MB",
    "checkpoint": "checkpoint, MB",
    "preparation": "preparation, CPU s",
}
UNITS |= {"round": "a round, CPU s"}


@register("patches")
class Patches(FeatureClassifier):
    """One convolution of patches of 4 x 4 pixels."""

    def __init__(self, num_classes: int, *, in_channels: int = 1) -> None:
        super().__init__(num_classes, feature_dim=32, in_channels=in_channels)
        self.conv = nn.Conv2d(in_channels, 32, 4, stride=4)

    def feature_map(self, x: Tensor) -> Tensor:
        """Return the channels at each patch."""
        return self.conv(x).relu()


def draw(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return images of 8 x 8 pixels and their labels: a pattern of each class in noise."""
    labels = np.arange(count) % CLASSES
    patterns = np.random.default_rng(0).integers(0, 128, (CLASSES, 1, 8, 8))
    noise = random.integers(0, 128, (count, 1, 8, 8))
    return (patterns[labels] + noise).astype(np.uint8), labels


def measure(method: str, clients: int, folder: Path) -> dict[str, float]:
    """Run three rounds and return what they took."""
    random = np.random.default_rng(1)
    images, labels = draw(IMAGES * clients, random)
    public, _ = draw(PUBLIC, random)
    data = FederatedDataModule(
        ((images, labels), draw(1000, random)), public, num_clients=clients, alpha=0.1
    )
    federation = Federation(
        METHODS[method](),
        {"patches": clients},
        participation=min(1, SELECTED / clients),
        local=LocalTraining(batch_size=IMAGES),
        distillation=Distillation(batch_size=500),
        pretraining=Pretraining(epochs=1),
        threads=1,
    )
    begins: list[float] = []
    federation.on_train_start = lambda: begins.append(time.process_time())
    trainer = pl.Trainer(
        max_epochs=ROUNDS,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.process_time()
    trainer.fit(federation, datamodule=data)
    end = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    checkpoint = folder / f"{method}-{clients}.ckpt"
    trainer.save_checkpoint(checkpoint)
    return {
        "memory": peak,
        "checkpoint": checkpoint.stat().st_size / 1e6,
        "preparation": begins[0] - start,
        "round": (end - begins[0]) / ROUNDS,
    }


def plot(points: list[dict[str, float | str]], path: Path) -> None:
    """Draw each measure over the number of clients, a line for each method."""
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, len(UNITS)), UNITS.items(), strict=True):
        for method in METHODS:
            own = [point for point in points if point["method"] == method]
            axes.plot([p["clients"] for p in own], [p[key] for p in own], "o-", label=method)
        axes.set(xscale="log", xlabel="clients", title=label, ylim=(0, None))
    figure.axes[0].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    place, *rest = sys.argv[1:]
    if len(rest) == 2:  # one point, in a process of its own
        print(json.dumps(measure(rest[0], int(rest[1]), Path(place))))
        sys.exit()
    print("| method | clients |", " | ".join(UNITS.values()), "|")
    print("| --- " * (2 + len(UNITS)) + "|")
    found = []
    for method in METHODS:
        for clients in COUNTS:
            command = [sys.executable, __file__, place, method, str(clients)]
            output = subprocess.check_output(command, text=True)  # noqa: S603 - our own
            point = json.loads(output.splitlines()[-1])
            print(f"| {method} | {clients:,} |", end=" ")
            print(
                " | ".join(f"{point[key]:,.{2 if point[key] < 10 else 0}f}" for key in UNITS),
                "|",
                flush=True,
            )
            found.append({"method": method, "clients": clients, **point})
    plot(found, Path(rest[0]) if rest else Path(place) / "clients.png")
