"""Files that ``torch.save`` wrote, read without trust in who wrote them.

``torch.load(weights_only=True)`` executes no code of a file, but ``bytearray(n)`` in a file of a
kilobyte fills the memory, and so do other functions that it lets a file call. This reader creates
nothing but tensors on the CPU and plain values, and needs no more memory than a multiple of the
size of the file.
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

_ZIP = b"PK\x03\x04"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_MAX_DEPTH = 100  # of values within values
_MAX_DIMENSIONS = 64
_MAX_SHOWN = 80  # characters of a name
_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


class TensorFileError(ValueError):
    """A file that is damaged, or holds anything but tensors and plain values."""


class _Memory(mmap.mmap):
    """The bytes of a file, which can be read like a file."""

    def seekable(self) -> bool:
        """Return true; zipfile asks, and before Python 3.13 the base class does not answer."""
        return True


def load_tensor_file(path: str | Path, *, is_mapped: bool = False) -> Any:
    """Return the content of a file that ``torch.save`` wrote, with all tensors on the CPU.

    Args:
        path: A zip archive, which torch writes since 1.6, or a file of the format before.
        is_mapped: Whether tensors stay in the file until they are used, which must not change
            meanwhile.

    Raises:
        TensorFileError: If the file is damaged, or holds anything but tensors and plain values.
        OSError: If the file cannot be read.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if is_mapped and size:
            memory = _Memory(file.fileno(), size, access=mmap.ACCESS_COPY)
        else:
            memory = _Memory(-1, max(size, 1))
            file.readinto(memory)
    return _parse(memory)


def parse_tensor_file(content: bytes) -> Any:
    """Return the content of such a file that is in memory; see ``load_tensor_file``."""
    memory = _Memory(-1, max(len(content), 1))
    memory.write(content)
    memory.seek(0)
    return _parse(memory)


def _parse(memory: _Memory) -> Any:
    try:
        is_zip = memory[: len(_ZIP)] == _ZIP
        value = _parse_archive(memory) if is_zip else _parse_legacy(memory)
        _check_tree(value, len(memory))
    except TensorFileError:
        raise
    # damaged content can raise nearly any exception here
    except Exception as error:
        raise TensorFileError("it is damaged or incomplete") from error
    return value


# --- The two formats ---------------------------------------------------------------------------


def _parse_archive(memory: _Memory) -> Any:
    """Read a zip archive with one pickle and an entry for the bytes of every storage."""
    content = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    with _open_archive(memory) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise TensorFileError("it is not a file that torch.save wrote")
        folder = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{folder}byteorder")
        if order is not None and archive.read(order) != b"little":
            raise TensorFileError("it was written on a machine with another order of bytes")
        pickled = archive.read(pickles[0])

    def find_storage(key: str, num_bytes: int) -> torch.UntypedStorage:
        entry = entries[f"{folder}data/{key}"]
        if entry.file_size != num_bytes:
            raise TensorFileError(
                f"it is damaged: the entry {key[:_MAX_SHOWN]!r} has another size than its tensors"
            )
        name_length, extra_length = struct.unpack_from("<HH", memory, entry.header_offset + 26)
        start = entry.header_offset + 30 + name_length + extra_length
        storage: torch.UntypedStorage = content[start : start + num_bytes]
        is_aligned = not storage.data_ptr() % 16  # torch aligns all storages
        return storage if is_aligned else storage.clone()  # type: ignore[no-untyped-call]

    return _Unpickler(io.BytesIO(pickled), len(memory), find_storage).load()


def _open_archive(memory: _Memory) -> zipfile.ZipFile:
    """Open an archive as ``torch.save`` writes it; raise an error if it is damaged.

    The archive has a CRC-32 of every entry, which torch does not check. An entry with attributes
    could be marked as a folder, which torch reads as memory that nobody has initialized.
    """
    try:
        archive = zipfile.ZipFile(cast(IO[bytes], memory))
        entries = archive.infolist()
        is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        is_larger = sum(entry.file_size for entry in entries) > len(memory)
        damaged = None if is_packed or is_larger else archive.testzip()
        marked = [entry.filename for entry in entries if entry.external_attr]
    # damaged headers can raise nearly any exception in zipfile
    except Exception as error:
        raise TensorFileError("it is damaged or incomplete") from error
    if is_packed or is_larger:
        raise TensorFileError("its entries are compressed or overlap, which torch.save does not do")
    if damaged is not None or marked:
        raise TensorFileError(
            f"it is damaged: the checksum of {damaged or marked[0]} does not match"
        )
    return archive


def _parse_legacy(memory: _Memory) -> Any:
    """Read five pickles in a row, of which the fourth is the content; bytes of storages follow."""
    room = len(memory)
    storages: dict[str, torch.UntypedStorage] = {}

    def find_storage(key: str, num_bytes: int) -> torch.UntypedStorage:
        """Create a storage whose bytes are read later."""
        nonlocal room
        if key not in storages:
            room -= num_bytes
            if room < 0:
                raise TensorFileError("its tensors are larger than the file")
            storages[key] = torch.UntypedStorage(num_bytes)  # type: ignore[no-untyped-call]
        if storages[key].nbytes() != num_bytes:
            raise TensorFileError("it is damaged: a storage has two sizes")
        return storages[key]

    try:
        magic, protocol, system = (_Unpickler(memory, room).load() for _ in range(3))
    except Exception as error:
        raise TensorFileError("it is not a file that torch.save wrote") from error
    if magic != _LEGACY_MAGIC or protocol != _LEGACY_PROTOCOL:
        raise TensorFileError("it is not a file that torch.save wrote")
    if not system["little_endian"]:
        raise TensorFileError("it was written on a machine with another order of bytes")
    value = _Unpickler(memory, room, find_storage).load()
    keys = _Unpickler(memory, room).load()
    for key in keys:
        storage = storages.pop(str(key))
        memory.seek(8, io.SEEK_CUR)  # the number of elements
        content = memory.read(storage.nbytes())
        if len(content) != storage.nbytes():
            raise TensorFileError("it is damaged or incomplete")
        if content:
            given = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            storage.copy_(given.untyped_storage())
    if storages:
        raise TensorFileError("it is damaged: it lacks the bytes of a tensor")
    return value


# --- Pickles -----------------------------------------------------------------------------------


@dataclass
class _Storage:
    """The elements that tensors are views of."""

    content: torch.UntypedStorage
    dtype: torch.dtype

    def __len__(self) -> int:
        return self.content.nbytes() // self.dtype.itemsize


@dataclass(frozen=True)
class _StorageType:
    dtype: torch.dtype


@dataclass(frozen=True)
class _Function:
    """A function that a pickle names, as what is done in its place with its arguments."""

    call: Callable[..., Any]


def _no_storage(*_: object) -> torch.UntypedStorage:
    raise TensorFileError("it is not a file that torch.save wrote")


class _Unpickler:
    """Executes the instructions of a pickle of protocol 2, as ``torch.save`` writes them.

    Args:
        file: Where the pickle starts.
        room: How many elements functions may copy from one container to another.
        find_storage: Returns the storage of a key that has so many bytes.
    """

    def __init__(
        self,
        file: io.BytesIO | _Memory,
        room: int,
        find_storage: Callable[[str, int], torch.UntypedStorage] = _no_storage,
    ) -> None:
        self.file = file
        self.room = room
        self.find_storage = find_storage
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks below a mark
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Return the pickled value."""
        for opcode, argument, _ in pickletools.genops(self.file):  # type: ignore[arg-type]
            name = opcode.name
            if name == "STOP":
                break
            if name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name]())
            elif name in _LITERALS:
                self.stack.append(argument)
            elif name in _INSTRUCTIONS:
                _INSTRUCTIONS[name](self, argument)
            elif name != "PROTO":
                raise TensorFileError(
                    f"it has the instruction {name}, which torch.save does not write"
                )
        (value,) = self.stack
        return value

    def _put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def _mark(self, _: None) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def _tuple(self, _: None) -> None:
        items = self._pop_mark()
        self.stack.append(tuple(items))

    def _short_tuple(self, length: int) -> None:
        items = tuple(self.stack[-length:])
        if len(items) != length:
            raise TensorFileError("it is damaged or incomplete")
        self.stack[-length:] = [items]

    def _append(self, _: None) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, _: None) -> None:
        self._extend(self._pop_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TensorFileError("it is damaged: it appends to what is no list")
        target.extend(items)

    def _set_item(self, _: None) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._update([key, value])

    def _set_items(self, _: None) -> None:
        self._update(self._pop_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict):
            raise TensorFileError("it is damaged: it sets items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_checked_key(key)] = value

    def _build(self, _: None) -> None:
        """Set the attributes of a state dict, of which ``_metadata`` has the versions of layers."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is not OrderedDict or not isinstance(state, dict):
            raise TensorFileError("it sets attributes of what is no state dict")
        if "_metadata" in state:
            target._metadata = state["_metadata"]  # type: ignore[attr-defined]

    def _global(self, path: str) -> None:
        """Push what stands for a class or function."""
        module, _, name = path.partition(" ")
        found: Any = _FUNCTIONS.get(path)
        if found is None and path == "torch.storage UntypedStorage":
            found = _StorageType(torch.uint8)
        if found is None and module == "torch":
            dtype = _DTYPES.get(name)
            found = getattr(torch, name, None) if dtype is None else _StorageType(dtype)
        if not isinstance(found, _Function | _StorageType | torch.dtype):
            module = module.replace("__builtin__", "builtins")  # the name of Python 2
            raise TensorFileError(
                f"it holds {f'{module}.{name}'[:_MAX_SHOWN]!r}, but only tensors and plain values "
                "are read"
            )
        self.stack.append(found)

    def _reduce(self, _: None) -> None:
        """Call a function, which may copy no more than there is room for."""
        arguments = self.stack.pop()
        function = self.stack.pop()
        if not isinstance(function, _Function) or not isinstance(arguments, tuple):
            raise TensorFileError("it is damaged: it calls what is no function")
        for argument in arguments:
            if isinstance(argument, str | list | dict | tuple):
                self.room -= len(argument)
        if self.room < 0:
            raise TensorFileError("it copies more than the file holds")
        self.stack.append(function.call(*arguments))

    def _storage(self, _: None) -> None:
        """Push the storage that a tuple describes: its type, key, device and size."""
        kind, storage_type, key, _device, count, *view = self.stack.pop()
        is_plain = kind == "storage" and isinstance(storage_type, _StorageType)
        if not is_plain or not _is_size(count) or view not in ([], [None]):
            raise TensorFileError("it refers to what is no storage of tensors")
        dtype = storage_type.dtype
        content = self.find_storage(str(key), count * dtype.itemsize)
        self.stack.append(_Storage(content, dtype))


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINSTRING"),
}
_INSTRUCTIONS: dict[str, Callable[[_Unpickler, Any], None]] = {
    "BINPUT": _Unpickler._put,
    "LONG_BINPUT": _Unpickler._put,
    "BINGET": _Unpickler._get,
    "LONG_BINGET": _Unpickler._get,
    "MARK": _Unpickler._mark,
    "TUPLE": _Unpickler._tuple,
    "TUPLE1": lambda unpickler, _: unpickler._short_tuple(1),
    "TUPLE2": lambda unpickler, _: unpickler._short_tuple(2),
    "TUPLE3": lambda unpickler, _: unpickler._short_tuple(3),
    "APPEND": _Unpickler._append,
    "APPENDS": _Unpickler._appends,
    "SETITEM": _Unpickler._set_item,
    "SETITEMS": _Unpickler._set_items,
    "BUILD": _Unpickler._build,
    "GLOBAL": _Unpickler._global,
    "REDUCE": _Unpickler._reduce,
    "BINPERSID": _Unpickler._storage,
}


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _checked_key(key: Any) -> Any:
    """Return a key; one of nested tuples could take more stack to hash than there is."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, str | bytes | int | float | None) for part in parts):
        raise TensorFileError("it has a key that is no plain value")
    return key


# --- What pickles may call ---------------------------------------------------------------------


def _ordered_dict(pairs: Sequence[tuple[Any, Any]] = ()) -> OrderedDict[Any, Any]:
    return OrderedDict((_checked_key(key), value) for key, value in pairs)


def _counter(counts: dict[Any, Any]) -> Counter[Any]:
    return Counter(dict(counts))


def _set(items: list[Any]) -> set[Any]:
    return {_checked_key(item) for item in items}


def _bytes(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise TensorFileError(f"it has bytes in the encoding {encoding[:_MAX_SHOWN]!r}")
    return text.encode("latin1")


def _tensor(storage: _Storage, offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return a view of a storage.

    A tensor that claims more elements than are stored, all of them the same, would take the memory
    as soon as it is copied.
    """
    if not isinstance(storage, _Storage) or len(size) != len(stride):
        raise TensorFileError("it has a damaged tensor")
    is_plain = all(map(_is_size, [offset, *size, *stride]))
    if not is_plain or len(size) > _MAX_DIMENSIONS:
        raise TensorFileError("it has a damaged tensor")
    count = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if count and last >= len(storage):
        raise TensorFileError("it is damaged: a tensor reaches beyond what is stored")
    if count > len(storage):
        raise TensorFileError(
            f"it has a tensor of {count:,} elements, but stores {len(storage):,}: save a "
            "contiguous tensor"
        )
    empty = torch.empty(0, dtype=storage.dtype)
    if not count:
        return empty.as_strided(tuple(size), tuple(stride))
    return empty.set_(storage.content, offset, tuple(size), tuple(stride))


def _tensor_with_grad(
    storage: _Storage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    _hooks: Any,
    metadata: Any = None,
) -> Tensor:
    if metadata:
        raise TensorFileError("it has a conjugated or negated view, not a plain tensor")
    return _tensor(storage, offset, size, stride).requires_grad_(requires_grad is True)


def _tensor_of_dtype(
    storage: _Storage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    hooks: Any,
    dtype: torch.dtype,
    metadata: Any = None,
) -> Tensor:
    """Return a view of a storage of bytes as elements of a dtype that has no storage class."""
    typed = _Storage(storage.content, dtype)
    return _tensor_with_grad(typed, offset, size, stride, requires_grad, hooks, metadata)


def _parameter(data: Tensor, requires_grad: bool, _hooks: Any) -> nn.Parameter:
    return nn.Parameter(data, requires_grad is True)


_FUNCTIONS = {
    "collections OrderedDict": _Function(_ordered_dict),
    "collections Counter": _Function(_counter),
    "__builtin__ set": _Function(_set),
    "builtins set": _Function(_set),
    "_codecs encode": _Function(_bytes),
    "torch Size": _Function(torch.Size),
    "torch device": _Function(torch.device),
    "torch._utils _rebuild_tensor": _Function(_tensor),
    "torch._utils _rebuild_tensor_v2": _Function(_tensor_with_grad),
    "torch._utils _rebuild_tensor_v3": _Function(_tensor_of_dtype),
    "torch._utils _rebuild_parameter": _Function(_parameter),
}


def _check_tree(value: Any, limit: int) -> None:
    """Raise a TensorFileError for values that take much more memory when they are copied.

    A list can hold another one twice, which holds a third one twice, and so on, or it can hold
    itself.
    """
    counts: dict[int, int] = {}  # of the values within a container, by its id

    def count(value: Any, depth: int) -> int:
        if isinstance(value, dict):
            children = list(value.values())
            children += [getattr(value, "_metadata", None)]
        elif isinstance(value, list | tuple):
            children = list(value)
        elif isinstance(value, _Storage | _StorageType | _Function):
            raise TensorFileError("it holds a part of a tensor alone")
        else:
            return 1
        if depth > _MAX_DEPTH:
            raise TensorFileError(f"its values are nested more than {_MAX_DEPTH} deep")
        if id(value) not in counts:
            counts[id(value)] = 1 + sum(count(child, depth + 1) for child in children)
        return counts[id(value)]

    if count(value, 0) > limit:
        raise TensorFileError("it holds values that repeat others more often than the file is long")
