"""Transparent pictures lie on a background; opaque ones keep their pixels, bit for bit."""

import hashlib
import io
import re
import struct
import subprocess
import sys
import zlib

import jsonargparse
import numpy as np
import pytest
import torch
from PIL import Image

from fedaux_pl.data import (
    FederatedDataModule,
    ImageFolder,
    ImageNetSubset,
    InMemory,
    Source,
)
from fedaux_pl.data.input_checks import note
from fedaux_pl.data.open_images import read_image
from fedaux_pl.data.pil_images import read_pil
from fedaux_pl.errors import DataError

CHECKERBOARD = np.indices((8, 8)).sum(axis=0) % 2 == 1


@pytest.fixture(autouse=True)
def _notes_are_printed_again():
    note.cache_clear()


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def with_alpha(alpha, mode="RGBA"):
    """A picture of noise with an alpha channel."""
    picture = Image.fromarray(noise(8, 8, 3))
    picture.putalpha(Image.fromarray(np.asarray(alpha, dtype=np.uint8)))
    return picture.convert(mode)


def opaque_pictures():
    color = Image.fromarray(noise(24, 20, 3))
    palette = Image.fromarray(np.arange(480, dtype=np.uint8).reshape(24, 20) % 7, "P")
    palette.putpalette(noise(21).tolist())
    full = color.copy()
    full.putalpha(255)
    return {
        "RGB": color,
        "L": color.convert("L"),
        "P": palette,
        "1": color.convert("1"),
        "CMYK": color.convert("CMYK"),
        "RGBA": full,
        "LA": full.convert("LA"),
    }


def pixels_of(picture, *args, **options):
    pixels, _ = read_pil(picture, *args, **options)
    return pixels


# of version 1.0.0: ledgers hold digests of these pixels, so they must never change
DIGESTS = {
    "RGB": "d3fbd1ba6443d2c0",
    "L": "d0b3745ee4b2cb7d",
    "P": "658524225c8996b0",
    "1": "e26aeed3fb3d27db",
    "CMYK": "d3fbd1ba6443d2c0",
    "RGBA": "d3fbd1ba6443d2c0",
    "LA": "d0b3745ee4b2cb7d",
}


@pytest.mark.parametrize("mode", opaque_pictures())
def test_opaque_pictures_keep_the_pixels_of_version_1(tmp_path, mode):
    picture = opaque_pictures()[mode]
    assert picture.mode == mode
    path = tmp_path / f"picture.{'tif' if mode == 'CMYK' else 'png'}"
    picture.save(path)
    digest = hashlib.sha256()
    for channels in (1, 3):
        for size in (8, 20):
            pixels, _ = read_image(path, size, channels, "white")
            digest.update(pixels.numpy().tobytes())
            assert torch.equal(pixels_of(picture, channels, size), pixels)
    assert digest.hexdigest()[:16] == DIGESTS[mode]


def test_an_opaque_picture_does_not_depend_on_the_background():
    for picture in opaque_pictures().values():
        pixels, original = read_pil(picture, background="blue")
        assert torch.equal(pixels, pixels_of(picture, background=None))
        assert not original.is_transparent


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize(("channels", "size"), [(None, None), (3, 8), (1, 5)])
def test_pixels_beneath_transparent_ones_do_not_count(mode, channels, size):
    one = with_alpha(np.where(CHECKERBOARD, 255, 0), mode)
    pixels = np.asarray(one).copy()
    pixels[~CHECKERBOARD, :-1] = noise(32, pixels.shape[2] - 1, seed=1)
    other = Image.fromarray(pixels)
    assert not np.array_equal(np.asarray(one), pixels)
    decoded = pixels_of(one, channels, size)
    assert torch.equal(decoded, pixels_of(other, channels, size))
    uncovered = pixels_of(one, channels, size, background=None)
    assert not torch.equal(uncovered, pixels_of(other, channels, size, background=None))


def test_the_background_shines_through_by_the_formula_of_alpha():
    alpha = noise(8, 8, seed=2)
    share = torch.from_numpy(alpha) / 255
    picture = with_alpha(alpha)
    above = torch.from_numpy(np.asarray(picture)[..., :3].copy()).permute(2, 0, 1)
    for name, color in (
        ("white", (255, 255, 255)),
        ("#102030", (16, 32, 48)),
        ("rgb(9, 8, 7)", (9, 8, 7)),
    ):
        beneath = torch.tensor(color)[:, None, None]
        expected = share * above + (1 - share) * beneath
        assert (pixels_of(picture, background=name) - expected).abs().max() <= 1


def png(depth, color_type, row, **chunks):
    """The bytes of a PNG file of 2 x 1 pixels, which Pillow cannot write in all forms."""

    def chunk(name, content):
        checksum = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + checksum

    header = struct.pack(">IIBBBBB", 2, 1, depth, color_type, 0, 0, 0)
    middle = [chunk(name.encode(), content) for name, content in chunks.items()]
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + b"".join(middle) + pixels + chunk(b"IEND", b"")


def shorts(*values):
    return struct.pack(f">{len(values)}H", *values)


GRAY, COLOR, PALETTE, GRAY_ALPHA, COLOR_ALPHA = 0, 2, 3, 4, 6
COLORS = bytes([1, 2, 3, 40, 50, 60])
# files whose first pixel is transparent, and the color of the second
FORMS = {
    "gray, 1 bit": (png(1, GRAY, bytes([0b10000000]), tRNS=shorts(1)), (0, 0, 0)),
    "gray, 2 bits": (png(2, GRAY, bytes([0b01100000]), tRNS=shorts(1)), (170, 170, 170)),
    "gray, 4 bits": (png(4, GRAY, bytes([0x72]), tRNS=shorts(7)), (34, 34, 34)),
    "gray, 8 bits": (png(8, GRAY, bytes([7, 9]), tRNS=shorts(7)), (9, 9, 9)),
    "gray with alpha": (png(8, GRAY_ALPHA, bytes([7, 0, 9, 255])), (9, 9, 9)),
    "gray with alpha, 16 bits": (
        png(16, GRAY_ALPHA, shorts(7, 0, 9 << 8, 65535)),
        (9, 9, 9),
    ),
    "color": (png(8, COLOR, COLORS, tRNS=shorts(1, 2, 3)), (40, 50, 60)),
    "color, 16 bits": (
        png(16, COLOR, shorts(300, 600, 900, 4 << 8, 5 << 8, 6 << 8), tRNS=shorts(300, 600, 900)),
        (4, 5, 6),
    ),
    "color with alpha, 16 bits": (
        png(16, COLOR_ALPHA, shorts(300, 600, 900, 0, 4 << 8, 5 << 8, 6 << 8, 65535)),
        (4, 5, 6),
    ),
    "palette": (png(8, PALETTE, bytes([0, 1]), PLTE=COLORS, tRNS=bytes([0])), (40, 50, 60)),
    "palette with alpha": (
        png(8, PALETTE, bytes([0, 1]), PLTE=COLORS, tRNS=bytes([0, 255])),
        (40, 50, 60),
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_transparency(form):
    content, second = FORMS[form]
    pixels, original = read_pil(Image.open(io.BytesIO(content)), channels=3, background="#0a0b0c")
    assert pixels[:, 0].T.tolist() == [[10, 11, 12], list(second)]
    assert original.is_transparent


def save(folder, **pictures):
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        picture.save(folder / f"{name}.png")


@pytest.fixture
def folder(tmp_path):
    """Two transparent pictures and an opaque one of two classes."""
    hole = with_alpha(np.where(CHECKERBOARD, 255, 0))
    save(tmp_path / "photos/cat", a=hole, b=with_alpha(np.full((8, 8), 255)))
    save(tmp_path / "photos/dog", c=with_alpha(np.full((8, 8), 100)))
    return tmp_path / "photos"


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_folder_puts_them_on_its_background_and_counts_them(folder, capsys, on_disk, on_error):
    counted = f"note: 2 of 3 pictures are transparent: they were put on a red background ({folder})"
    for _ in range(2):  # the second time from the cache
        source = ImageFolder(folder, size=8, background="red", on_error=on_error)
        source.on_disk = on_disk
        inputs = source.train().inputs[:]
        assert inputs[0, :, 0, 0].tolist() == [255, 0, 0]
        opaque = pixels_of(Image.open(folder / "cat/b.png"))
        assert torch.equal(inputs[1], opaque)
        assert counted in capsys.readouterr().err
        note.cache_clear()
        assert FederatedDataModule(source).input_format == {"background": "red"}
    white = ImageFolder(folder, size=8).train()
    assert white.inputs[0, :, 0, 0].tolist() == [255, 255, 255]  # not those of the cache in red


def test_one_picture_and_none(tmp_path, capsys):
    save(tmp_path, a=with_alpha(np.zeros((8, 8))))
    ImageFolder(tmp_path, size=8).auxiliary()
    told = "1 of 1 picture is transparent: it was put on a white background"
    assert told in capsys.readouterr().err
    save(tmp_path, a=Image.fromarray(noise(8, 8, 3)))
    ImageFolder(tmp_path, size=8).auxiliary()
    assert "transparent" not in capsys.readouterr().err


def test_other_sources(tmp_path, capsys):
    hole = with_alpha(np.where(CHECKERBOARD, 255, 0))
    save(tmp_path / "n02084071", a=hole)
    subset = ImageNetSubset(tmp_path, subset="Dogs", size=8, background="#0000ff")
    assert subset.train().inputs[0, :, 0, 0].tolist() == [0, 0, 255]
    assert "1 of 1 picture is transparent" in capsys.readouterr().err
    pairs = [(hole, "cat"), (Image.fromarray(noise(8, 8, 3)), "dog")]
    given = InMemory(pairs, background="lime")
    assert given.train().inputs[0, :, 0, 0].tolist() == [0, 255, 0]
    assert given.input_format == {"background": "lime"}
    told = "1 of 2 pictures is transparent: it was put on a lime background (the train data)"
    assert told in capsys.readouterr().err
    assert InMemory(pairs).train().inputs[0, :, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    "background", ["whit", "#12345", "rgb(256, 0, 0)", "#ffffff80", "transparent", 3, None]
)
def test_a_background_must_be_a_color(tmp_path, background):
    with pytest.raises(ValueError, match=r"background: got .* be the name of a color"):
        ImageFolder(tmp_path, background=background)


@pytest.mark.parametrize("background", ["teal", "rgb(1, 2, 3)"])
def test_the_background_is_an_option_of_a_configuration(background):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--source", type=Source)
    given = ["--source=ImageFolder", "--source.root=x", f"--source.background={background}"]
    config = parser.parse_args(given)
    again = parser.parse_string(parser.dump(config))
    assert parser.instantiate_classes(again).source.background == background


def test_what_version_1_read(folder):
    source = ImageFolder(folder, size=8)
    assert source.as_version_1() is source  # nothing transparent has been read
    now = source.train().inputs
    former = source.as_version_1().train().inputs
    uncovered = torch.from_numpy(np.asarray(Image.open(folder / "cat/a.png"))[..., :3].copy())
    assert torch.equal(former[0], uncovered.permute(2, 0, 1))
    assert [bool((one == other).all()) for one, other in zip(now, former, strict=True)] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("name", ["a b.png", "a.tif", "big_endian.tif", "a.pgm"])
def test_gray_of_16_bits_is_refused_with_a_command_that_converts_it(tmp_path, name):
    values = np.array([[0, 256, 40_000, 65_535]], dtype=np.uint16).repeat(4, axis=0)
    order = ">u2" if name == "big_endian.tif" else "<u2"
    path = tmp_path / name
    Image.fromarray(values.astype(order)).save(path)
    with pytest.raises(DataError, match="more than 8 bits") as caught:
        ImageFolder(tmp_path, size=4, channels=1).auxiliary()
    [command] = re.findall("`python (.*)`, or remove it", str(caught.value))
    subprocess.run(f"{sys.executable} {command}", shell=True, check=True)  # noqa: S602
    converted = ImageFolder(tmp_path, size=4, channels=1).auxiliary()
    assert converted[0, 0, 0].tolist() == [0, 1, 156, 255]
