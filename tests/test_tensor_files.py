"""Files of torch.save: all that torch writes is read, and nothing takes more memory than it has."""

import collections
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from fedaux_pl.models import create_model
from fedaux_pl.tensor_files import TensorFileError, load_tensor_file, parse_tensor_file

MB = 1 << 20
GB = 1 << 30


def dtypes():
    small = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    others = (torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64)
    return [*small, *floats, *others]


def content():
    """A value of every kind that is read."""
    matrix = torch.arange(12.0).view(3, 4)
    return {
        "tensors": [torch.arange(6).to(dtype) for dtype in dtypes()],
        "views": [matrix, matrix.T, matrix[1:, ::2], matrix[0, 0], matrix[:0]],
        "empty": torch.zeros(0, 3),
        "gradient": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "plain": [None, True, False, 0, -1, 300, 70_000, 1 << 40, -(1 << 70), 0.5, "text", b"\xff"],
        "nested": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]], {1: {}, (1, "a"): 2, None: 3}),
        "more": [{1, 2}, collections.Counter("aab"), torch.Size([2, 3]), torch.device("cpu")],
        "dtype": torch.float32,
    }


def assert_same(one, other):
    """Equal, in type as well; tensors bit for bit, with their strides."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.requires_grad == other.requires_grad
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for member, twin in zip(one, other, strict=True):
            assert_same(member, twin)
    else:
        assert one == other


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_all_that_torch_writes_is_read(tmp_path, is_zip, is_mapped):
    path = tmp_path / "file.pt"
    torch.save(content(), path, _use_new_zipfile_serialization=is_zip)
    loaded = load_tensor_file(path, is_mapped=is_mapped)
    assert_same(loaded, content())
    assert_same(parse_tensor_file(path.read_bytes()), content())
    matrix, transposed, *_ = loaded["views"]
    matrix += 1
    assert torch.equal(transposed, matrix.T)  # views of one storage stay views of one storage
    assert_same(load_tensor_file(path), content())  # the file is as before


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_dict_keeps_the_versions_of_its_layers(tmp_path, is_zip):
    state = create_model("resnet8", 3, width=0.125).state_dict()
    torch.save(state, tmp_path / "file.pt", _use_new_zipfile_serialization=is_zip)
    loaded = load_tensor_file(tmp_path / "file.pt")
    assert_same(loaded, state)
    assert loaded._metadata == state._metadata


@pytest.mark.parametrize("is_zip", [True, False])
def test_truncated_files_are_refused(tmp_path, is_zip):
    path = tmp_path / "file.pt"
    torch.save(content(), path, _use_new_zipfile_serialization=is_zip)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 50):
        with pytest.raises(TensorFileError, match=r"it is (not a file that|damaged)"):
            parse_tensor_file(whole[:length])


# --- Hostile files -----------------------------------------------------------------------------


def number(value):
    return pickle.LONG1 + bytes([8]) + value.to_bytes(8, "little")


def text(value):
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def name(path):
    module, _, attribute = path.rpartition(".")
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def call(path, *arguments):
    return name(path) + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def storage(count, key="0", *view):
    parts = text("storage"), name("torch.FloatStorage"), text(key), text("cpu"), number(count)
    return pickle.MARK + b"".join([*parts, *view]) + pickle.TUPLE + pickle.BINPERSID


def tensor(count, size, stride, *view):
    shape = number(size) + pickle.TUPLE1, number(stride) + pickle.TUPLE1
    hooks = call("collections.OrderedDict")
    parts = storage(count, "0", *view), number(0), *shape, pickle.NEWFALSE, hooks
    return call("torch._utils._rebuild_tensor_v2", *parts)


def items(values):
    return pickle.EMPTY_LIST + pickle.MARK + b"".join(values) + pickle.APPENDS


def memoized(value):
    return value + pickle.BINPUT + b"\x00"


AGAIN = pickle.BINGET + b"\x00"


def pickled(value):
    return pickle.PROTO + b"\x02" + value + pickle.STOP


def archive(value, stored=b"\0" * 4, compression=zipfile.ZIP_STORED):
    """The zip archive of a pickle and one storage."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        for entry, data in {"data.pkl": pickled(value), "data/0": stored, "version": b"3"}.items():
            written.writestr(zipfile.ZipInfo(f"archive/{entry}"), data, compression)
    data = bytearray(file.getvalue())
    position = data.find(b"PK\x01\x02")
    while position >= 0:  # without the attributes of files, as torch writes it
        data[position + 38 : position + 42] = bytes(4)
        position = data.find(b"PK\x01\x02", position + 1)
    return bytes(data)


def legacy(value, keys=()):
    """A file of the format before zip archives, without the bytes of storages."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True, "protocol_version": 1001}]
    head = b"".join(pickle.dumps(part, protocol=2) for part in parts)
    return head + pickled(value) + pickle.dumps(list(keys), protocol=2)


def doubling(depth):
    """A list of twice a list of twice a list ..."""
    return pickle.EMPTY_LIST + (memoized(b"") + AGAIN + pickle.TUPLE2) * depth


VIEW = pickle.NONE
HOSTILE = {
    "bytearray": archive(call("__builtin__.bytearray", number(3 * GB))),
    "a tensor that is not initialized": archive(call("torch.FloatTensor", number(GB))),
    "a storage that is not initialized": archive(
        call("torch.storage.UntypedStorage", number(3 * GB))
    ),
    "a tensor of no storage": archive(
        name("torch.Tensor") + number(GB) + pickle.TUPLE1 + pickle.NEWOBJ
    ),
    "another encoding": archive(call("_codecs.encode", text("a"), text("utf-32"))),
    "a function that torch calls": archive(
        call("torch._tensor._rebuild_from_type_v2", name("__builtin__.bytearray"))
    ),
    "copies of a text": archive(
        items(
            [
                memoized(text("a" * 100_000)),
                *[call("_codecs.encode", AGAIN, text("latin1"))] * 30_000,
            ]
        )
    ),
    "copies of a tuple": archive(
        items(
            [
                memoized(pickle.MARK + number(1) * 20_000 + pickle.TUPLE),
                *[call("torch.Size", AGAIN)] * 20_000,
            ]
        )
    ),
    "copies of a dictionary": archive(
        items(
            [
                memoized(items(number(key) + pickle.NONE + pickle.TUPLE2 for key in range(10_000))),
                *[call("collections.OrderedDict", AGAIN)] * 20_000,
            ]
        )
    ),
    "an expanded tensor": archive(tensor(1, GB, 0)),
    "a tensor beyond its storage": archive(tensor(4, 2, 4), bytes(16)),
    "a storage beyond its entry": archive(tensor(GB, 1, 1)),
    "compressed entries": archive(
        tensor(50 * MB, 50 * MB, 1), bytes(200 * MB), zipfile.ZIP_DEFLATED
    ),
    "lists of twice a list": archive(doubling(64)),
    "values nested very deep": archive(pickle.EMPTY_LIST + pickle.TUPLE1 * 100_000),
    "a key nested very deep": archive(
        pickle.EMPTY_DICT + pickle.NONE + pickle.TUPLE1 * 300_000 + pickle.NONE + pickle.SETITEM
    ),
    "a list in itself": archive(memoized(pickle.EMPTY_LIST) + AGAIN + pickle.APPEND),
    "a legacy tensor larger than the file": legacy(tensor(GB, 1, 1, VIEW), "0"),
    "legacy tensors without their bytes": legacy(tensor(1, 1, 1, VIEW)),
    "a legacy expanded tensor": legacy(tensor(1, GB, 0, VIEW), "0"),
    "a legacy text": legacy(pickle.BINUNICODE + struct.pack("<I", 4 * GB - 1)),
}


def memory():
    """The greatest sizes of this process so far, in bytes: of its pages, and of its addresses."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[entry].split()[0]) * 1024 for entry in ("VmHWM", "VmPeak")]


def read_all(folder):
    """Print what each file of a folder raises, and by how much memory has grown with it."""
    torch.set_num_threads(1)
    torch.save(content(), file := io.BytesIO())
    parse_tensor_file(file.getvalue())  # what the first call needs
    for path in sorted(Path(folder).iterdir()):
        before = memory()
        refusal = None
        try:
            load_tensor_file(path)
        except Exception as error:  # what it is is told
            refusal = [type(error).__name__, str(error)]
        growth = [after - start for after, start in zip(memory(), before, strict=True)]
        print(json.dumps([path.name, refusal, growth]), flush=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What reading each hostile file ends with, in a process that reads them all."""
    folder = tmp_path_factory.mktemp("hostile")
    for kind, data in HOSTILE.items():
        (folder / kind).write_bytes(data)
    code = f"from tests.test_tensor_files import read_all; read_all({str(folder)!r})"
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (rows[-1:], done.stderr[-2000:])
    return {kind: (refusal, growth) for kind, refusal, growth in rows}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_within_the_memory_of_its_size(outcomes, kind):
    (error, message), (pages, addresses) = outcomes[kind]
    assert error == "TensorFileError"
    assert "\n" not in message
    assert pages < 50 * MB + 100 * len(HOSTILE[kind])
    assert addresses < 200 * MB + 100 * len(HOSTILE[kind])
