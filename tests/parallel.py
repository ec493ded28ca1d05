"""Federations in several processes, each of which saves its results."""

import multiprocessing
import os
import socket

import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import (
    Centralized,
    FedAvg,
    FedBE,
    FedBN,
    FedClassMeans,
    FedDF,
    FedProx,
    Scaffold,
)
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.engine import AtomicCheckpointIO, ClientParallel
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.scoring import Privacy, SecureSums, StatisticsScoring
from tests.federation.test_given_clients import NamedWards
from tests.federations import FewDigits, create, fit, measured, split, weights
from tests.paper import paper_fedaux

# Adam and BatchNorm divide by small numbers: rounding errors would not stay small.
ADAM = {
    "local": LocalTraining(batch_size=16, optimizer="adam", lr=1e-3),
    "distillation": Distillation(batch_size=16, optimizer="adam", lr=1e-3),
    "pretraining": Pretraining(epochs=1, batch_size=20, optimizer="adam", lr=1e-3),
}
FIVE = {"clients": {"resnet8": 5}, "participation": 0.8}  # 4 clients a round
SCENARIOS = {
    "FedAvg": (FedAvg, FIVE, 2),
    "FedProx": (lambda: FedProx(mu=0.1), {"clients": {"resnet8": 4}}, 1),
    "FedDF": (FedDF, FIVE, 2),
    "Centralized": (Centralized, {"clients": {"resnet8": 1}}, 2),
    "FedBE": (lambda: FedBE(samples=2), {"clients": {"resnet8": 2, "shufflenet": 1}}, 1),
    "Dirichlet": (lambda: FedBE(samples=2, posterior="dirichlet"), {}, 1),
    "linear": (lambda: FedAvg(pretrained=True), {"trained": "head"}, 1),
    "Scaffold": (
        Scaffold,
        {
            "clients": {"resnet8": 4, "shufflenet": 1},
            "participation": 0.8,
            "local": LocalTraining(batch_size=16, optimizer="sgd", lr=0.05),
        },
        2,
    ),
    "vote": (
        FedDF,
        {
            "clients": {"resnet8": 2, "shufflenet": 1},
            "distillation": Distillation(batch_size=16, lr=1e-3, blend="vote"),
        },
        2,
    ),
    "own": (FedBN, {"batchnorm_statistics": "own", "participation": 0.7}, 2),
    "FedClassMeans": (
        lambda: FedClassMeans(
            scoring=StatisticsScoring(dimensions=8), privacy=Privacy(5.0, secure=SecureSums())
        ),
        {"clients": {"resnet8": 4, "shufflenet": 3}},
        1,
    ),
    "FedAUX": (
        lambda: paper_fedaux(epsilon=None, remember=True),
        {
            "clients": {"resnet8": 5, "shufflenet": 1},
            "participation": 0.5,  # 3 clients a round: 0, 2, 5, then 1, 3, 4
            "local": LocalTraining(batch_size=16, augmentation="crop_flip", schedule="cosine"),
            "distillation": Distillation(
                batch_size=16,
                lr=1e-3,
                augmentation="torchvision.transforms.v2.RandAugment",
                blend="vote",
            ),
        },
        2,
    ),
}


def run(scenario, folder, rank, size, ckpt_path=None):
    """Runs a scenario in the process ``rank`` of ``size``, which has its own folder."""
    algorithm, options, rounds = SCENARIOS[scenario]
    federation = create(algorithm(), **(ADAM | options))
    private = NamedWards() if scenario == "own" else FewDigits()
    checkpoints = ModelCheckpoint(
        folder / f"rank {rank}", "{epoch}", every_n_epochs=1, save_top_k=-1
    )
    fit(
        folder / f"rank {rank}",
        federation,
        rounds,
        split(
            len(federation.architectures),
            private=private,
            auxiliary=FewDigits(auxiliary=42),
            validation_fraction=0.2 if scenario == "FedAUX" else 0.0,
            distill_fraction=0.6 if scenario == "FedAUX" else 1.0,
        ),
        ckpt_path,
        # figures are slow: only FedAUX's, and not again when it is resumed in another folder
        callbacks=[checkpoints, FederationReport(images=folder.name == "FedAUX")],
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
        "kept": {
            f"{owner}.{name}.{key}": tensor
            for owner, slots in [
                *federation.state.server_states.items(),
                ("c_i", federation.state.client_states),
            ]
            for name, tensors in slots.items()
            for key, tensor in tensors.items()
        },
        "optimizers": {
            f"{owner}.{index}.{name}": entry
            for owner, state in federation.state.client_optimizers.items()
            for index, entries in state["state"].items()
            for name, entry in entries.items()
        },
    }


def work(rank, size, port, folder, jobs):
    """Runs jobs in one process, with the environment that Lightning's launcher would set."""
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
    """Starts ``size`` processes and returns the results of each.

    Args:
        size: The number of processes.
        folder: Where they write.
        jobs: The scenario and the checkpoint to resume from, by the name of the job.
    """
    # One server process imports the packages once, and every process is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedaux_pl.cli.verbs", "lightly.loss", "matplotlib.pyplot"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(exist_ok=True)
    processes = [
        context.Process(target=work, args=(rank, size, port, folder, jobs)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
