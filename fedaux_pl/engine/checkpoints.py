"""Checkpoints of a federation: written atomically, found, loaded and compared with a run."""

import os
import reprlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from fedaux_pl._version import __version__
from fedaux_pl.data.fingerprints import have_other_keys
from fedaux_pl.errors import ConfigurationError, did_you_mean_path, first_line
from fedaux_pl.files import write_atomically
from fedaux_pl.lightning import TorchCheckpointIO, rank_zero_warn
from fedaux_pl.tensor_files import load_tensor_file

FORMAT = 8
"""The format of a federation's checkpoints, since 2.0; others are refused."""
_ENTRIES: Mapping[str, type] = {"state_dict": Mapping, "hyper_parameters": Mapping}
_FEDERATION: Mapping[str, type] = {
    **dict.fromkeys(("settings", "metrics", "h0", "site_sizes"), Mapping),
    **dict.fromkeys(("releases", "teachers", "client_states"), Mapping),
    **dict.fromkeys(("history", "classes", "input_shape"), list),
}
_SETTINGS: Mapping[str, type] = {"clients": Mapping, "model_options": Mapping, "threads": int}


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint completely or not at all, and checks its checksums on loading.

    A process that is killed while it writes leaves the checkpoint of the previous round.

    Args:
        background: The name of the files that a thread writes while the next round runs. They are
            copied to host memory first, and complete when the next file is written or the Trainer
            ends; a failed write raises then.
    """

    def __init__(self, background: str | None = None) -> None:
        super().__init__()
        self.background = background
        self._pending: Future[None] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save; raise an OSError if this file, or the one before it, cannot be written."""
        self.finish()
        target = Path(path)
        if target.name != self.background:
            _write(checkpoint, target)
            return
        copy = apply_to_collection(
            checkpoint, torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True)
        )
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending = thread.submit(_write, copy, target)
        thread.shutdown(wait=False)  # no further files: each has a thread of its own

    def finish(self) -> None:
        """Wait for the file that is being written; raise an OSError if that failed."""
        if self._pending is not None:
            pending = self._pending
            self._pending = None
            pending.result()

    def teardown(self) -> None:
        """Wait for the file that is being written."""
        self.finish()
        super().teardown()

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint; raise a ConfigurationError if it is damaged or holds other objects.

        Tensors of a local file come to the CPU. Lightning reads files of other machines, and those
        that the caller trusts by ``weights_only=False``.
        """
        self.finish()
        is_trusted = weights_only is False
        with _reading(path):
            if Path(path).is_file() and not is_trusted:
                return dict(load_tensor_file(Path(path)))
            return super().load_checkpoint(path, map_location, weights_only)


def _write(checkpoint: dict[str, Any], target: Path) -> None:
    try:
        write_atomically(target, lambda file: torch.save(checkpoint, file))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise OSError(
            f"the checkpoint {target} could not be written ({_reason(error)}); {_saved(target)}"
        ) from error


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn all errors of reading a file into one."""
    try:
        yield
    # The unpickler can raise nearly any exception for a file of another format.
    except Exception as error:
        raise ConfigurationError(
            f"{path} cannot be read as a checkpoint ({_reason(error)}): give another checkpoint, "
            "or start anew without one"
        ) from error


def check_undamaged(path: str | os.PathLike[str]) -> None:
    """Raise a ConfigurationError if a local file is damaged or of a foreign format."""
    if Path(path).is_file():
        with _reading(path):
            load_tensor_file(Path(path), is_mapped=True)


def find_checkpoint(ckpt_path: str | None, root: Path) -> Path | None:
    """Return the path of a checkpoint; raise a ConfigurationError if there is no such file.

    ``ckpt_path`` is a file, the folder of a run, or "last": the newest ``last.ckpt`` of ``root``.
    """
    if ckpt_path is None:
        return None
    folder = root if ckpt_path == "last" else Path(ckpt_path)
    if folder.is_file():
        return folder
    if ckpt_path != "last" and not folder.is_dir():
        raise ConfigurationError(
            f"there is no checkpoint at {folder.absolute()}{did_you_mean_path(folder)}: give a "
            "checkpoint, the folder of a run, or 'last'"
        )
    newest = find_last(folder)
    if newest is None:
        raise ConfigurationError(
            f"there is no last.ckpt below {folder.absolute()}: give the folder of a run, or a "
            "checkpoint, or start a run with `fedaux-pl fit` and no --ckpt_path"
        )
    return newest


def find_tested(run: str | None, root: Path) -> Path | None:
    """Return a run's checkpoint that ``fit`` tests: ``best.ckpt``, else ``last.ckpt``.

    ``run`` is as of ``find_checkpoint``; a checkpoint is taken as it is.
    """
    checkpoint = find_checkpoint(run, root)
    if checkpoint is None or checkpoint == Path(str(run)):
        return checkpoint
    best = checkpoint.with_name("best.ckpt")
    return best if best.is_file() else checkpoint


def find_last(root: Path) -> Path | None:
    """Return the newest ``last.ckpt`` below a folder, if there is one."""
    written: dict[Path, int] = {}
    for path in root.rglob("last.ckpt"):
        if any(name.startswith(".") for name in path.relative_to(root).parts):
            continue  # in the scratch folder of a benchmark
        with suppress(FileNotFoundError):  # removed meanwhile
            written[path] = path.stat().st_mtime_ns
    return max(written, key=written.__getitem__, default=None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load the checkpoint of a federation, with memory-mapped tensors."""
    with _reading(path):
        checkpoint = load_tensor_file(path, is_mapped=True)
    check_content(checkpoint, str(path))
    return dict(checkpoint)


def check_content(checkpoint: Any, source: str) -> None:
    """Raise a ConfigurationError unless this is the content of a federation's checkpoint.

    ``source`` is what messages call it.
    """
    if not isinstance(checkpoint, Mapping) or "federation" not in checkpoint:
        raise ConfigurationError(
            f"{source} is not the checkpoint of a federation: use one that `fedaux-pl fit` wrote"
        )
    content = checkpoint["federation"]
    _check_entries(checkpoint, {"federation": Mapping}, source)
    check_format(content)
    _check_entries(checkpoint, _ENTRIES, source)
    _check_entries(content, _FEDERATION, source, "federation.")
    _check_entries(content["settings"], _SETTINGS, source, "federation.settings.")


def _check_entries(
    values: Mapping[str, Any], kinds: Mapping[str, type], source: str, prefix: str = ""
) -> None:
    for name, kind in kinds.items():
        value = values.get(name)
        if not isinstance(value, kind):
            got = "nothing" if value is None else reprlib.repr(value)
            raise ConfigurationError(
                f"{source}: {prefix}{name}: got {got}; expected a {kind.__name__.lower()}: use a "
                "checkpoint that `fedaux-pl fit` wrote"
            )


def _reason(error: Exception) -> str:
    """Return the first line of an error's message; the system's words if it is the system's."""
    while not isinstance(error, OSError) and isinstance(error.__context__, OSError):
        error = error.__context__
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)


def _saved(path: Path) -> str:
    """Say which checkpoint there is after a failed attempt to replace it."""
    for saved in (path, path.with_name("last.ckpt")):
        with suppress(ConfigurationError):
            rounds = len(load_checkpoint(saved)["federation"]["history"])
            return (
                f"the last complete one, after round {rounds}, is still there: make room in "
                f"trainer.default_root_dir and resume with --ckpt_path {saved}"
            )
    return "there is no earlier one: make room in trainer.default_root_dir, or choose another"


def check_resumable(saved: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise a ConfigurationError if a run with these settings cannot resume one with those saved.

    The private data of a checkpoint from another machine cannot be compared: a warning says so.
    """
    if _check_same(saved, settings):
        rank_zero_warn(
            "the checkpoint comes from another machine, whose key of fingerprints is not here: "
            "whether this run has the same private data and test data cannot be checked"
        )


def check_format(content: Mapping[str, Any]) -> None:
    """Raise a ConfigurationError if a federation's checkpoint has the format of other versions."""
    saved = content.get("format", 1)
    if not isinstance(saved, int):
        raise ConfigurationError(
            f"the checkpoint is damaged: its format is {reprlib.repr(saved)}, not a number: use "
            "one that `fedaux-pl fit` wrote"
        )
    if saved != FORMAT:
        version = "1.0 or an earlier version" if saved < FORMAT else "a later version"
        raise ConfigurationError(
            f"the checkpoint was written by {version} (format {saved}; expected {FORMAT}): start "
            "anew without it, or use the version that wrote it"
        )


def check_version(content: Mapping[str, Any]) -> None:
    """Warn if another minor version began the run."""
    saved = str(content.get("version", "unknown"))
    if saved.split(".")[:2] != __version__.split(".")[:2]:
        rank_zero_warn(
            f"fedaux-pl {saved} began this run, and {__version__} goes on: it may end with other "
            "weights than with one version"
        )


def without_new(settings: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without options that the saved ones, of an earlier version, lack.

    Examples:
        >>> without_new({"data": {"alpha": 2, "new": 0}}, {"data": {"alpha": 1}})
        {'data': {'alpha': 2}}
    """
    known = {}
    for name, value in settings.items():
        old = saved.get(name)
        # in these two, names are architectures, not options
        is_group = name not in ("clients", "model_options")
        if is_group and isinstance(value, Mapping) and isinstance(old, Mapping):
            known[name] = without_new(value, old)
        elif name in saved:
            known[name] = value
    return known


def _check_same(saved: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = "") -> bool:
    """Compare all settings; return whether some are fingerprints with different keys."""
    other_key = False
    # Settings of both come first: those of only one follow from another method or architecture.
    common = saved.keys() & requested.keys()
    for name in [*sorted(common), *sorted(saved.keys() ^ requested.keys())]:
        old = saved.get(name)
        new = requested.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            other_key |= _check_same(old, new, f"{prefix}{name}.")
        elif have_other_keys(old, new):
            other_key = True
        elif old != new:
            raise ConfigurationError(
                f"the checkpoint was made with {prefix}{name} = {old!r}, but this run asks for "
                f"{new!r}: use the same setting, or start a new run without the checkpoint"
            )
    return other_key
