"""Measure data.memory: resident memory of a run from disk, and the time of an epoch against memory.

``python tools/measure_memory.py write FOLDER`` writes 200,000 random pictures of 64 x 64 pixels,
``python tools/measure_memory.py resident FOLDER`` runs a round of FedAVG on them from disk,
``python tools/measure_memory.py time FOLDER`` trains one epoch from memory and one from disk, in
turns of 2,048 pictures, so that other programs on the machine slow down both alike.
"""

import resource
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from torch.optim import SGD

from fedaux_pl import ClientModule, FedAvg, FederatedDataModule, Federation, LocalTraining
from fedaux_pl.data import NpzImages

COUNT, SHAPE, CLASSES, BATCH, TURN = 200_000, (3, 64, 64), 10, 32, 64
MODEL = {"width": 0.125}


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


def create_data(folder: Path, memory: str, clients: int) -> FederatedDataModule:
    """Return the data of clients that hold all pictures."""
    return FederatedDataModule(NpzImages(folder), num_clients=clients, alpha=100, memory=memory)


def resident(folder: Path) -> None:
    """Run a round of four clients on all pictures from disk and print the peak memory."""
    local = LocalTraining(epochs=1, batch_size=BATCH)
    options = {"participation": 1.0, "local": local, "model_options": MODEL}
    federation = Federation(FedAvg(), {"resnet8": 4}, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    start = time.perf_counter()
    trainer.fit(federation, datamodule=create_data(folder, "disk", clients=4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    seconds = federation.history[0]["seconds/clients"]
    print(f"peak {peak:.2f} GB; clients {seconds:.0f} s; all {time.perf_counter() - start:.0f} s")


def measure_time(folder: Path) -> None:
    """Train two copies of a model in turns, one from memory and one from disk."""
    steps, spent = {}, {}
    for memory in ("device", "disk"):
        data = create_data(folder, memory, clients=1)
        data.setup()
        batches = data.client_batches(0, BATCH)
        pl.seed_everything(0, verbose=False)
        module = ClientModule("resnet8", CLASSES, model_options=MODEL)
        steps[memory], spent[memory] = run_epoch(module, batches), []
    count = -(-(COUNT // BATCH) // TURN)
    for turn in range(count):
        for memory in list(steps)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            losses = list(islice(steps[memory], TURN))
            spent[memory].append(time.perf_counter() - start)
            last = losses[-1]
        if turn % 10 == 9 or turn == count - 1:
            device, disk = (sum(spent[memory]) for memory in ("device", "disk"))
            text = f"{turn + 1} of {count}: memory {device:.1f} s, disk {disk:.1f} s"
            print(f"{text}, {disk / device:.3f} times as long, loss {last:.4f}", flush=True)


def run_epoch(module, batches):
    """Yield the loss of every step of an epoch."""
    optimizer = SGD(module.parameters(), lr=0.01)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = module.training_step(batch, index)
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


if __name__ == "__main__":
    verb, place = sys.argv[1:3]
    {"write": write, "resident": resident, "time": measure_time}[verb](Path(place))
