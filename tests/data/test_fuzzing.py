"""Damaged and hostile files: either they load, or a FedauxError says why not."""

import gzip
import io
import zipfile
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from fedaux_pl.data import ImageFolder, NpzImages, TextFiles
from fedaux_pl.data.input_checks import check_expansion
from fedaux_pl.errors import DataError
from tests.fuzzing import fuzz, is_loaded, readers

READERS = readers()
COUNT = 20  # `python -m tests.fuzzing` tries more


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_loaded_or_refused(name):
    reader = READERS[name]
    assert is_loaded(reader, reader.content, name) == (name != "npz, objects")
    result = fuzz(reader, COUNT)
    assert result.refused > 0


def test_the_fuzzer_notices_other_exceptions_long_messages_and_execution(monkeypatch):
    reader = READERS["npz, objects"]

    def crash(path):
        raise KeyError("foreign")

    def chatter(path):
        raise DataError("no\n" * 20)

    def unpickle(path):
        np.load(path, allow_pickle=True)["train_x"]

    for load, message in ((crash, "KeyError"), (chatter, "a message of"), (unpickle, "executes")):
        with pytest.raises(AssertionError, match=message):
            is_loaded(reader._replace(load=load), reader.content, "npz")


def bomb(path, shape, claimed=None):
    """An npz file of zeros, compressed 1,000 times, with the header of a ``claimed`` shape."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": claimed or shape}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_x.npy", header.getvalue() + bytes(int(np.prod(shape))))
    return path


def test_npz_bombs(tmp_path, monkeypatch):
    small = bomb(tmp_path / "small.npz", (4, 1, 64, 64))
    assert NpzImages(small).auxiliary().shape == (4, 1, 64, 64)
    # the same file is a bomb where 4 kB are large
    monkeypatch.setattr("fedaux_pl.data.input_checks._LARGE", 1 << 12)
    with pytest.raises(DataError, match=r"'train_x' .* grows from .* store it uncompressed"):
        NpzImages(small).auxiliary()
    monkeypatch.undo()
    liar = bomb(tmp_path / "liar.npz", (4, 1, 64, 64), claimed=(1 << 40, 1, 64, 64))
    with pytest.raises(DataError, match=r"is not a readable \.npz file \(.*Unable to allocate"):
        NpzImages(liar).auxiliary()


def test_more_than_the_memory_is_refused():
    with pytest.raises(DataError, match=r"x has 1,073,741,824\.00 GiB .* memory has .*: use fewer"):
        check_expansion(1 << 60, 1 << 60, "x")  # not compressed: no decompression bomb
    check_expansion(1 << 20, 1, "x")
    check_expansion(3 << 30, 1 << 30, "x")


def test_text_bombs(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"all the same\n" * 1000))
    assert len(TextFiles(path).auxiliary()) == 1000
    monkeypatch.setattr("fedaux_pl.data.input_checks._LARGE", 1 << 10)
    with pytest.raises(DataError, match=r"a\.txt\.gz grows from .* decompressed"):
        TextFiles(path, max_length=8).auxiliary()
    monkeypatch.setattr("fedaux_pl.data.sources.text_files._MAX_LINE", 8)
    with pytest.raises(DataError, match="a line of 8 characters or more"):
        TextFiles(path, max_length=9).auxiliary()


def png_chunk(kind, content):
    checksum = zlib.crc32(kind + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + kind + content + checksum


@pytest.mark.parametrize("side", [10_000, 100_000])  # Pillow warns of the first, refuses the second
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_of_gigantic_size(tmp_path, side):
    sides = side.to_bytes(4, "big") * 2
    header = png_chunk(b"IHDR", sides + bytes([8, 0, 0, 0, 0]))
    pixels = png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    content = b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read the image .* pixels.* repair or remove it"):
        ImageFolder(tmp_path).auxiliary()


def test_postscript_is_never_interpreted(tmp_path, monkeypatch):
    def interpret(*args, **options):
        raise SystemExit("Ghostscript was called")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", interpret)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(DataError, match="cannot identify image file"):
        ImageFolder(tmp_path).auxiliary()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "label": "b\\u0000c"}', "line 2 has a null character"),
        ('{"text": "\\ud800", "label": "b"}', "line 2 is no valid text: .* surrogates not allowed"),
        ("[" * 100_000, r"cannot be read as text \(line 2 is not JSON: maximum recursion"),
    ],
)
def test_json_that_is_no_text(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a", "label": "b"}}\n{line}\n')
    with pytest.raises(DataError, match=message):
        TextFiles(path).train()


def test_messages_of_files_with_very_many_columns_stay_short(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"column{n}" for n in range(5000)) + "\n1,2,3\n")
    with pytest.raises(DataError, match="column9 and 4990 more") as refusal:
        TextFiles(path).train()
    assert len(str(refusal.value)) < 600
