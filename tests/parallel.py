"""Federations in several processes, each of which leaves behind what it ended with."""

import multiprocessing
import os
import socket

import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAUX, FedAvg, FedBE, FedDF, FedProx
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.engine import (
    AtomicCheckpointIO,
    ClientParallel,
    Distillation,
    LocalTraining,
    Pretraining,
)
from tests.federations import FewDigits, create, fit, measured, split, weights

# Adam divides a gradient by its own size, and BatchNorm a value by that of a few like it: where
# those are nearly 0 they make rounding errors large.
STEADY = {
    "local": LocalTraining(batch_size=16, optimizer="sgd", lr=0.02, momentum=0.5),
    "distillation": Distillation(batch_size=16, optimizer="sgd", lr=0.02, momentum=0.5),
    # 42 = 20 + 20 + 2 images: of the last batch one of three processes has nothing
    "pretraining": Pretraining(epochs=1, batch_size=20, optimizer="sgd", lr=0.01),
}
GROUPS = {"model_options": {"width": 0.125, "norm": "group"}}
FIVE = {"clients": {"resnet8": 5}, "participation": 0.4}  # 2 of them a round
SCENARIOS = {
    "FedAvg": (FedAvg, FIVE, 2),
    "FedProx": (lambda: FedProx(mu=0.1), {"clients": {"resnet8": 4}}, 1),
    "FedDF": (FedDF, FIVE | {"optimizer_state": "carry"}, 2),
    "FedBE": (lambda: FedBE(samples=2), {"clients": {"resnet8": 2, "shufflenet": 1}} | GROUPS, 1),
    "Dirichlet": (lambda: FedBE(samples=2, posterior="dirichlet"), GROUPS, 1),
    "linear": (lambda: FedAvg(pretrained=True), {"train": "head"}, 1),
    "FedAUX": (
        lambda: FedAUX(epsilon=None),
        {
            "clients": {"resnet8": 3, "shufflenet": 2},
            "participation": 0.8,
            "optimizer_state": "carry",
            **GROUPS,
        },
        2,
    ),
}


def run(scenario, folder, rank, size, ckpt_path=None):
    """A scenario, in the process ``rank`` of ``size``, with a folder of its own."""
    algorithm, options, rounds = SCENARIOS[scenario]
    federation = create(algorithm(), **STEADY, **options)
    checkpoints = ModelCheckpoint(
        folder / f"rank {rank}", "{epoch}", every_n_epochs=1, save_top_k=-1
    )
    fit(
        folder / f"rank {rank}",
        federation,
        rounds,
        split(len(federation.architectures), auxiliary=FewDigits(auxiliary=42)),
        ckpt_path,
        callbacks=[checkpoints, FederationReport()],
        enable_checkpointing=True,
        plugins=[AtomicCheckpointIO()],
        **({"strategy": ClientParallel(), "devices": size} if size > 1 else {}),
    )
    return {
        "weights": weights(federation),
        "measured": measured(federation),
        "history": federation.history,
        "h0": {f"{name}.{key}": v for name, h in federation.h0.items() for key, v in h.items()},
        "heads": {str(head.client): head.weight for head in federation.heads},
        "optimizers": {
            f"{owner}.{index}": entries["momentum_buffer"]
            for kept in (federation._client_optimizers, federation._server_optimizers)
            for owner, state in kept.items()
            for index, entries in state["state"].items()
        },
    }


def work(rank, size, port, folder, jobs):
    """One of the processes, found by Lightning as it finds those that it has started itself."""
    torch.set_num_threads(1)
    if size > 1:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0}
        place |= {"LOCAL_RANK": rank, "WORLD_SIZE": size}
        os.environ |= {name: str(value) for name, value in place.items()}
    results = {
        name: run(scenario, folder / name, rank, size, ckpt_path)
        for name, (scenario, ckpt_path) in jobs.items()
    }
    torch.save(results, folder / f"{rank}.pt")


def launch(size, folder, jobs):
    """What each of ``size`` processes ends with.

    Args:
        size: How many there are.
        folder: For what they write.
        jobs: The scenario and the checkpoint to go on from, by the name of the job.
    """
    # One server process imports the packages once, and every process is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedaux_pl.commands", "lightly.loss", "matplotlib.pyplot"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(exist_ok=True)
    crew = [
        context.Process(target=work, args=(rank, size, port, folder, jobs)) for rank in range(size)
    ]
    for process in crew:
        process.start()
    for process in crew:
        process.join(300)
    ended = [process.exitcode for process in crew]
    for process in crew:
        process.kill()
    assert ended == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
