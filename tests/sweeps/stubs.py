"""Tasks and processes that stand for runs where the runs are not the point."""

import json
from pathlib import Path

from fedaux_pl.sweeps.cells import Cell


def task(root, key, rounds=2, **coordinates):
    coordinates = coordinates or {"cell": key}
    args = ("--config", "quickstart")
    model = {"clients": {}, "model_options": {}, "algorithm": {"class_path": "FedAvg"}}
    config = {"model": model, "data": {"private": None, "auxiliary": None}}
    return Cell(coordinates, 0, args, Path(root), key, rounds, config)


def write_run(cell, rounds, seconds=1.0, **summary):
    """Writes what ``fit`` leaves after some rounds."""
    run = cell.path / "runs" / "A"
    run.mkdir(parents=True, exist_ok=True)
    measure = "val/accuracy" if "validation" in summary else "accuracy"
    lines = [f"round,{measure},seconds/clients,seconds/averaging"]
    lines += [f"{i + 1},0.5,{seconds},0.5" for i in range(rounds)]
    (run / "curve.csv").write_text("\n".join(lines) + "\n")
    (run / "summary.json").write_text(json.dumps({"rounds": rounds, **summary}))
    return run


def complete(one):
    """Leaves what the process of a task leaves when it succeeds."""
    write_run(one, one.rounds)


class StubProcess:
    """A process that ends at the n-th look at it, with some status."""

    pid = None

    def __init__(self, status=0, looks=1, at_end=lambda: None):
        self.status, self.looks, self.at_end = status, looks, at_end

    @property
    def exitcode(self):
        self.looks -= 1
        if self.looks == 0:
            self.at_end()
        return self.status if self.looks <= 0 else None

    def is_alive(self):
        return False

    def join(self):
        pass
