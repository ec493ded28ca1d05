"""What a federation adds to a checkpoint of Lightning, as tensors and plain values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_fabric.utilities import move_data_to_device

from fedaux_pl.algorithms import TeacherMemory
from fedaux_pl.engine.checkpoints import (
    FORMAT,
    AtomicCheckpointIO,
    check_format,
    check_resumable,
    check_undamaged,
    load_checkpoint,
)
from fedaux_pl.federation.hyperparameters import rebuild
from fedaux_pl.models import check_imported
from fedaux_pl.scoring.records import pack, unpack

if TYPE_CHECKING:
    from fedaux_pl.federation.federation import Federation

_Federation = TypeVar("_Federation", bound="Federation")


def fill_checkpoint(
    checkpoint: dict[str, Any],
    federation: "Federation",
    round_start: Sequence[dict[Any, Any]] | None,
) -> None:
    """Adds what the next round needs besides the students.

    Lightning also saves within a round, in its handler of SLURM's signal. Then the checkpoint holds
    what the round began with, and a resumed run repeats the round.

    Args:
        checkpoint: The checkpoint that Lightning writes.
        federation: The federation.
        round_start: The students, the optimizer states of clients and server, the stored memory
            and the method's states of server and clients at the start of the current round; None
            between two rounds.
    """
    clients, server = federation.client_optimizers, federation.server_optimizers
    data, memory = federation.data, federation.memory
    steps_kept, clients_kept = federation.server_states, federation.client_states
    steps: Any = federation.trainer.fit_loop.epoch_loop.batch_progress.current
    if round_start and steps.processed < steps.ready:
        weights, clients, server, stored, steps_kept, clients_kept = round_start
        checkpoint["state_dict"] = {f"students.{key}": value for key, value in weights.items()}
        memory = TeacherMemory()
        memory.stored = stored
    remembered = {}
    if federation.algorithm.remember:
        remembered = federation.processes.merge(memory.state_dict())
    checkpoint["federation"] = {
        "format": FORMAT,
        "settings": federation.settings(),
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
        "input_format": data.input_format,
        "history": federation.history,
        "round": federation.metrics,  # not in the history if saved right after validation
        "h0": federation.h0,
        "heads": pack(federation.heads) if federation.heads else {},
        "privacy": federation.privacy(),
        "server_optimizers": server,
        "client_optimizers": clients,
        "server_states": steps_kept,
        "client_states": clients_kept,
        "memory": remembered,
    }


def restore_checkpoint(checkpoint: dict[str, Any], federation: "Federation") -> None:
    """Restores an undamaged checkpoint of the same format and settings.

    Raises:
        ConfigurationError: If it is damaged, of another format or of other settings.
    """
    trainer = federation.trainer
    is_checked = isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)
    if trainer.ckpt_path is not None and not is_checked:
        check_undamaged(trainer.ckpt_path)
    content = checkpoint["federation"]
    # earlier releases did not save the number of threads
    federation.use_threads(content["settings"].setdefault("threads", federation.threads))
    check_resumable(content, federation.settings())
    federation.history, federation.metrics = content["history"], content["round"]
    federation.h0 = content["h0"]
    if content["heads"] and federation.algorithm.scoring is not None:
        federation.heads = unpack(content["heads"], federation.algorithm.scoring)
    federation.server_optimizers = content["server_optimizers"]
    federation.client_optimizers = content["client_optimizers"]
    for name in ("server_states", "client_states"):
        kept = move_data_to_device(content[name], trainer.strategy.root_device)
        setattr(federation, name, kept)
    # split between the processes, however many have written it
    own = federation.processes.local(sorted(content["memory"].items()))
    federation.memory.load_state_dict(dict(own))


def load_federation(
    kind: type[_Federation], path: Path, map_location: Any, changed: Mapping[str, Any]
) -> _Federation:
    """Creates the federation of a checkpoint, with its students.

    Args:
        kind: The class of the federation.
        path: The checkpoint.
        map_location: The device of the students; None for the CPU.
        changed: Arguments of the constructor that replace those of the checkpoint.
    """
    checkpoint = load_checkpoint(path)
    content = checkpoint["federation"]
    check_format(content)
    saved = {k: v for k, v in checkpoint["hyper_parameters"].items() if k not in changed}
    check_imported(saved.get("clients", {}))
    federation = kind(**rebuild(saved), **changed)
    federation.create_students(
        list(federation.clients),
        federation.model_options,
        federation.seed,
        input_shape=content["input_shape"],
        classes=content["classes"],
        pretrained=False,  # the weights follow
    )
    federation.load_state_dict(checkpoint["state_dict"])
    federation.history, federation.loaded_from = content["history"], path
    return federation.to(map_location or "cpu").eval()
