"""Mutated files: readers of foreign bytes either load them or refuse them clearly.

``python -m tests.fuzzing --count 2000`` mutates a valid file of every kind 2,000 times.
"""

import argparse
import bz2
import contextlib
import faulthandler
import gzip
import io
import json
import lzma
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from PIL import Image

from fedaux_pl.data import ImageFolder, NpzImages, TextFiles
from fedaux_pl.errors import FedauxError

MAX_LINES, MAX_CHARACTERS = 4, 1000  # of a message
SECONDS = 60  # after which a file counts as one that hangs
_EXECUTING = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"}


def mutate(content: bytes, seed: int) -> bytes:
    """A damaged copy of a file: 1 to 4 mutations that the seed chooses."""
    rng = random.Random(seed)
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        _MUTATIONS[rng.randrange(len(_MUTATIONS))](data, rng)
    return bytes(data)


def _flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8, 64)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _write_run(data: bytearray, rng: random.Random) -> None:
    start, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 16, 256))
    filler = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80", b"\n", b'"', b","))
    data[start : start + length] = filler * min(length, len(data) - start)


def _set_number(data: bytearray, rng: random.Random) -> None:
    """Sizes and offsets in headers become extreme."""
    width = rng.choice((2, 4, 8))
    value = rng.choice((0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width) - 1, 10**4))
    if len(data) >= width:
        start = rng.randrange(len(data) - width + 1)
        order = rng.choice(("little", "big"))
        data[start : start + width] = (value % 2 ** (8 * width)).to_bytes(width, order)


def _splice(data: bytearray, rng: random.Random) -> None:
    """Copies, moves or removes a block."""
    start = rng.randrange(len(data) + 1)
    block = data[start : start + rng.randrange(1, 1 + max(1, len(data) // 4))]
    if rng.random() < 0.5:
        del data[start : start + len(block)]
    if rng.random() < 0.75:
        where = rng.randrange(len(data) + 1)
        data[where:where] = block


def _insert_noise(data: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(data) + 1)
    data[where:where] = rng.randbytes(rng.choice((1, 3, 32, 512)))


_MUTATIONS = (_flip_bits, _truncate, _write_run, _set_number, _splice, _insert_noise)


class Reader(NamedTuple):
    """A reader of foreign bytes: the name of a file, its valid content, and what loads it."""

    file: str
    content: bytes
    load: Callable[[Path], object]


class Result(NamedTuple):
    """How many of the mutated files a reader has loaded and refused, and how long it took.

    ``slowest`` is the time of the slowest file.
    """

    loaded: int
    refused: int
    seconds: float
    slowest: float


def fuzz(reader: Reader, count: int) -> Result:
    """Mutates the file of a reader; raises an AssertionError unless it loads or refuses them all.

    A refusal is a FedauxError with a message of a few lines. Nothing may be executed, and a reader
    that hangs ends the process with a traceback.
    """
    loaded, seconds = 0, []
    for seed in range(count):
        content, start = mutate(reader.content, seed), time.perf_counter()
        loaded += is_loaded(reader, content, f"{reader.file}, seed {seed}")
        seconds.append(time.perf_counter() - start)
    return Result(loaded, count - loaded, sum(seconds), max(seconds))


def is_loaded(reader: Reader, content: bytes, what: str) -> bool:
    """Whether a reader loads this content; see ``fuzz`` for what it must not do."""
    uncached = mock.patch.dict(os.environ, FEDAUX_PL_CACHE_GB="0")
    with uncached, tempfile.TemporaryDirectory() as folder, _watched() as events:
        path = Path(folder) / reader.file
        path.write_bytes(content)
        try:
            reader.load(path)
        except FedauxError as error:
            message = str(error).replace(folder, "")
            is_short = message.count("\n") < MAX_LINES and len(message) <= MAX_CHARACTERS
            assert is_short, f"{what}: a message of {len(message)} characters: {message[:2000]}"
            done = False
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            done = True
    assert not events, f"{what}: it executes {events}"
    return done


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """Collects the names of audit events that execute something, and ends a process that hangs."""
    global _events
    _install_hook()
    _events = []
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _events
    finally:
        faulthandler.cancel_dump_traceback_later()
        _events = None


_events: list[str] | None = None


@cache
def _install_hook() -> None:  # once: an audit hook cannot be removed
    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if _events is not None and event in _EXECUTING:
            _events.append(f"{event} {arguments}")

    sys.addaudithook(listen)


class Payload:
    """An object that runs a function when it is unpickled."""

    def __reduce__(self):
        return print, ("a payload was executed",)


def readers() -> dict[str, Reader]:
    """All readers of data, by name."""
    rng = np.random.default_rng(0)
    rows = [
        (f"the text, number {n}, is \u201cquoted\u201d", "good" if n % 2 else "bad")
        for n in range(12)
    ]
    table = ["text,label", *(f'"{text}\nand more",{label}' for text, label in rows)]
    objects = [
        json.dumps({"text": text, "label": label, "more": [1, None]}) for text, label in rows
    ]
    csv_, json_ = "\n".join(table).encode(), "\n".join(objects).encode()
    text = "\n".join(text for text, _ in rows).encode()
    images = rng.integers(0, 256, (8, 3, 8, 8), dtype=np.uint8)
    labels = np.arange(8) % 3
    arrays = {"train_x": images, "train_y": labels, "test_x": images[:2], "test_y": labels[:2]}
    objects = {**arrays, "train_x": np.array([Payload()], dtype=object)}
    return {
        "npz": Reader("file.npz", _npz(np.savez, arrays), _load_npz),
        "npz, compressed": Reader("file.npz", _npz(np.savez_compressed, arrays), _load_npz),
        "npz, objects": Reader("file.npz", _npz(np.savez, objects), _load_npz),
        "csv": Reader("file.csv", csv_, _load_texts),
        "csv.gz": Reader("file.csv.gz", gzip.compress(csv_, mtime=0), _load_texts),
        "tsv": Reader("file.tsv", csv_.replace(b",", b"\t"), _load_texts),
        "jsonl": Reader("file.jsonl", json_, _load_texts),
        "jsonl.xz": Reader("file.jsonl.xz", lzma.compress(json_), _load_texts),
        "txt": Reader("file.txt", text, _load_texts),
        "txt.bz2": Reader("file.txt.bz2", bz2.compress(text), _load_texts),
        **{kind: Reader(f"file.{kind}", _picture(kind), _load_images) for kind in _PICTURES},
    }


_PICTURES = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")


def _npz(save: Callable[..., None], arrays: dict[str, Any]) -> bytes:
    save(file := io.BytesIO(), **arrays)
    return file.getvalue()


def _picture(kind: str) -> bytes:
    x, y = np.mgrid[:24, :20]
    pixels = np.stack([x * 10, y * 12, x * y // 2], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), kind)
    return file.getvalue()


def _load_npz(path: Path) -> None:
    NpzImages(path).train()
    NpzImages(path, size=4).test()


def _load_images(path: Path) -> None:
    ImageFolder(path.parent, size=8).auxiliary()


def _load_texts(path: Path) -> None:
    source = _text_source()
    source.path = path
    source.auxiliary() if ".txt" in path.name else source.train()


@cache  # loading a tokenizer takes much longer than reading a file
def _text_source() -> TextFiles:
    return TextFiles("", max_length=16)


def main() -> None:
    """Runs all readers and prints a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=2000, help="mutated files of each kind")
    parser.add_argument("--only", default="", help="the readers whose name contains this")
    options = parser.parse_args()
    columns = ("count", "loaded", "refused", "seconds", "slowest", "peak MB")
    print(f"{'file':<16}" + "".join(f"{column:>9}" for column in columns))
    for name, reader in readers().items():
        if options.only in name:
            result = fuzz(reader, options.count)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            counts = "".join(f"{n:>9}" for n in (options.count, result.loaded, result.refused))
            times = f"{result.seconds:>9.1f}{result.slowest:>9.2f}"
            print(f"{name:<16}{counts}{times}{peak:>9}", flush=True)


if __name__ == "__main__":
    main()
