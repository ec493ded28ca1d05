"""`fedaux-pl predict`: a table for other images, the same as the model's own answers."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedaux_pl.cli.entry import main
from fedaux_pl.data import Digits
from fedaux_pl.data.input_checks import shorten


@pytest.fixture
def fitted(finished_run):
    """A federation of two architectures, its folder and its checkpoint."""
    return finished_run.federation, finished_run.root, finished_run.checkpoint


@pytest.fixture(scope="module")
def images():
    """A few test digits, uint8 of shape (N, 1, 8, 8)."""
    return Digits().test().inputs[:12]


@pytest.fixture
def folder(images, tmp_path):
    """The same as files, named against their order."""
    folder = tmp_path / "images"
    folder.mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(folder / f"{len(images) - index:02d}.png")
    return folder


def answers(model, images):
    with torch.no_grad():
        return model(images)


def table(path):
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    names = [row[0] for row in rows]
    predicted = [row[1] for row in rows]
    return header, names, predicted, torch.tensor([[float(p) for p in row[2:]] for row in rows])


def check(path, expected):
    """The table has the expected probabilities; returns the names of its rows."""
    header, names, predicted, found = table(path)
    assert header == ["image", "class", *"0123456789"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(found)), atol=1e-5, rtol=0)
    assert predicted == [str(int(row.argmax())) for row in expected]
    return names


def test_the_answers_differ_so_that_an_order_can_be_told(fitted, images):
    """What the tests below rest on."""
    expected = answers(fitted[0], images)
    assert torch.cdist(expected, expected).fill_diagonal_(1).min() > 1e-3
    alone = fitted[0].students["resnet8"](images).softmax(dim=1)
    assert (alone - expected).abs().max() > 1e-3


def test_a_folder_of_images(fitted, images, folder, tmp_path, capsys):
    model, _, checkpoint = fitted
    output = tmp_path / "new" / "out.csv"
    args = [f"--ckpt_path={checkpoint}", f"--images={folder}", f"--output={output}"]
    assert main(["predict", *args]) == 0
    assert capsys.readouterr().out == f"12 images: {output}\n"
    names = check(output, answers(model, images.flip(0)))
    assert names == [str(folder / f"{number:02d}.png") for number in range(1, 13)]
    assert {path.suffix for path in folder.iterdir()} == {".png"}  # no cache is left behind


def test_files_and_folders_with_sub_folders(fitted, images, folder, tmp_path, capsys):
    model, _, checkpoint = fitted
    for path in list(folder.iterdir()):
        place = folder / ("b" if int(path.stem) < 7 else "a")
        place.mkdir(exist_ok=True)
        path.rename(place / path.name)
    (tmp_path / "more").mkdir()
    single = (folder / "b" / "03.png").rename(tmp_path / "more" / "03.png")
    output = tmp_path / "out.csv"
    args = ["predict", f"--ckpt_path={checkpoint}", f"--output={output}", "--images"]
    assert main([*args, str(single), str(folder)]) == 0
    numbers = [3, *range(7, 13), 1, 2, 4, 5, 6]
    names = check(output, answers(model, images[[12 - number for number in numbers]]))
    assert [int(Path(name).stem) for name in names] == numbers
    assert main([*args, str(single)]) == 0
    assert check(output, answers(model, images[[9]])) == [str(single)]
    assert capsys.readouterr().out == f"12 images: {output}\n1 images: {output}\n"


def test_rows_stay_aligned_where_an_image_cannot_be_read(fitted, images, folder, tmp_path, capsys):
    model, _, checkpoint = fitted
    (folder / "02.png").write_text("no image")
    output = tmp_path / "out.csv"
    args = [f"--ckpt_path={checkpoint}", f"--images={folder}", f"--output={output}"]
    assert main(["predict", *args]) == 0
    note = f"12 images (1 cannot be read and have empty rows: {shorten([str(folder / '02.png')])})"
    assert capsys.readouterr().out == f"{note}: {output}\n"
    with output.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[2] == [str(folder / "02.png"), *[""] * 11]
    expected = answers(model, images.flip(0))
    for row, probabilities in zip(rows[1:], expected, strict=True):
        if row[1]:
            found = torch.tensor([float(p) for p in row[2:]])
            torch.testing.assert_close(found, probabilities, atol=1e-5, rtol=0)


def save_with_holes(folder, images, beneath):
    """Save digits as pictures that are transparent where a digit is black."""
    folder.mkdir()
    for index, image in enumerate(images):
        gray = image[0].numpy()
        alpha = np.where(gray > 0, 255, 0).astype(np.uint8)
        pixels = np.stack([np.where(gray > 0, gray, beneath(index)), alpha], axis=-1)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02d}.png")


def test_pixels_beneath_transparent_ones_do_not_change_the_answers(
    fitted, images, tmp_path, capsys
):
    model, _, checkpoint = fitted
    rng = np.random.default_rng(0)
    save_with_holes(tmp_path / "one", images, lambda index: 0)
    save_with_holes(tmp_path / "other", images, lambda index: rng.integers(0, 256, (8, 8)))
    output = tmp_path / "out.csv"
    args = ["predict", f"--ckpt_path={checkpoint}", f"--output={output}"]
    on_white = torch.where(images > 0, images, 255)
    for name in ("one", "other"):
        folder = tmp_path / name
        assert main([*args, f"--images={folder}"]) == 0
        check(output, answers(model, on_white))
        told = "12 of 12 pictures are transparent: they were put on a white background"
        assert f"note: {told} ({folder})\n" in capsys.readouterr().err
    assert main([*args, f"--images={folder}", "--background=black"]) == 0
    check(output, answers(model, images))
    assert main([*args, f"--images={folder}", "--background=#ffffff"]) == 0
    check(output, answers(model, on_white))
    assert main([*args, f"--images={folder}", "--background=blak"]) == 1
    assert "background: got 'blak'; expected" in capsys.readouterr().err


def test_the_background_is_that_of_the_training(fitted, images, tmp_path):
    model, _, checkpoint = fitted
    loaded = torch.load(checkpoint, weights_only=True)
    loaded["federation"]["input_format"] = {"background": "black"}
    torch.save(loaded, tmp_path / "black.ckpt")
    save_with_holes(tmp_path / "images", images, lambda index: 99)
    output = tmp_path / "out.csv"
    args = [f"--ckpt_path={tmp_path / 'black.ckpt'}", f"--images={tmp_path / 'images'}"]
    assert main(["predict", *args, f"--output={output}"]) == 0
    check(output, answers(model, images))


def test_pictures_of_another_size_or_color_are_noted(fitted, folder, tmp_path, capsys):
    _, _, checkpoint = fitted
    args = ["predict", f"--ckpt_path={checkpoint}", f"--output={tmp_path / 'out.csv'}"]
    assert main([*args, f"--images={folder}"]) == 0
    assert "note: " not in capsys.readouterr().err
    for name in ("01.png", "02.png"):
        Image.new("RGB", (64, 48), "teal").save(folder / name)
    assert main([*args, f"--images={folder}"]) == 0
    told = capsys.readouterr().err
    assert (
        "note: 2 of 12 pictures are not of the size 8 x 8 that the run was trained on (the first: "
        "64 x 48): their central squares were resized\n"
    ) in told
    assert (
        "note: 2 of 12 pictures are in color, but the run was trained on gray pictures: they were "
        "converted\n"
    ) in told


def test_names_that_are_not_utf_8(fitted, images, folder, tmp_path, capsys, monkeypatch):
    model, _, checkpoint = fitted
    first = folder / os.fsdecode(b"00\xe9.png")
    (folder / "01.png").rename(first)
    (folder / os.fsdecode(b"99\xff.png")).write_text("no image")
    output = tmp_path / "out.csv"
    args = ["predict", f"--ckpt_path={checkpoint}", f"--output={output}", "--images"]
    assert main([*args, str(folder)]) == 0
    _, *rows = output.read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith(f"{folder}/00\\xe9.png,")
    assert rows[-1].startswith(f"{folder}/99\\xff.png,,")
    found = torch.tensor([float(p) for p in rows[0].split(",")[2:]])
    torch.testing.assert_close(found, answers(model, images.flip(0))[0], atol=1e-5, rtol=0)
    assert "13 images (1 cannot be read and have empty rows" in capsys.readouterr().out

    assert main([*args, str(first)]) == 1  # YAML, in which options are read, cannot hold it
    told = capsys.readouterr().err
    assert "images/00\\xe9.png: got a name that is not UTF-8; expected UTF-8 in options" in told
    here = tmp_path / os.fsdecode(b"caf\xe9")
    here.mkdir()
    monkeypatch.chdir(here)
    assert main([*args, str(folder)]) == 1
    assert f"the current folder, {tmp_path}/caf\\xe9, is not UTF-8" in capsys.readouterr().err


def test_an_npz_file(fitted, images, tmp_path):
    model, _, checkpoint = fitted
    np.savez(tmp_path / "images.npz", pictures=images.numpy(), other=np.zeros(3))
    output = tmp_path / "out.csv"
    args = [f"--ckpt_path={checkpoint}", f"--images={tmp_path / 'images.npz'}", "--key=pictures"]
    assert main(["predict", *args, f"--output={output}"]) == 0
    assert check(output, answers(model, images)) == [str(index) for index in range(12)]


def test_the_newest_checkpoint_below_a_folder(fitted, images, folder, tmp_path, monkeypatch):
    model, root, _ = fitted
    output = tmp_path / "out.csv"
    args = ["--ckpt_path=last", f"--images={folder}", f"--output={output}"]
    assert main(["predict", *args, f"--root={root}"]) == 0
    check(output, answers(model, images.flip(0)))

    (tmp_path / "logs").symlink_to(root)  # the default of --root
    monkeypatch.chdir(tmp_path)
    output.unlink()
    assert main(["predict", *args]) == 0
    check(output, answers(model, images.flip(0)))


def test_a_mistake_is_one_clear_message(fitted, images, folder, tmp_path, capsys):
    _, _, checkpoint = fitted
    empty = tmp_path / "empty"
    empty.mkdir()
    text, foreign = tmp_path / "text.ckpt", tmp_path / "foreign.ckpt"
    text.write_text("hello")
    torch.save({"state_dict": {"weight": torch.zeros(3)}}, foreign)
    damaged = tmp_path / "damaged.png"
    damaged.write_text("no image")
    wide, named = tmp_path / "wide.npz", tmp_path / "named.npz"
    np.savez(wide, train_x=np.zeros((2, 1, 8, 9), np.uint8))
    np.savez(named, pictures=images.numpy())
    cases = [
        (tmp_path / "no.ckpt", folder, [f"there is no checkpoint at {tmp_path / 'no.ckpt'}"]),
        (text, folder, [f"{text} cannot be read as a checkpoint"]),
        (foreign, folder, [f"{foreign} is not the checkpoint of a federation"]),
        (checkpoint, wide, [str(wide), "(1, 8, 9)", "(1, 8, 8)"]),
        (
            checkpoint,
            named,
            [f"{named} holds no array 'train_x'; its arrays are pictures", "--key"],
        ),
        (checkpoint, empty, ["No image files were found in", str(empty)]),
        (checkpoint, tmp_path / "no", [f"there are no images at {tmp_path / 'no'}"]),
        (checkpoint, text, ["image files and folders of them, or one npz file", "text.ckpt"]),
        (checkpoint, damaged, [f"cannot read the image {damaged}", "repair or remove it"]),
    ]
    output = tmp_path / "out.csv"
    for ckpt_path, path, words in cases:
        args = [f"--ckpt_path={ckpt_path}", f"--images={path}", f"--output={output}"]
        assert main(["predict", *args]) == 1
        message = capsys.readouterr().err
        assert message.startswith("fedaux-pl predict: error: ")
        assert "Traceback" not in message
        for word in words:
            assert word in message
        assert not output.exists()


def test_probabilities_that_are_no_numbers_are_an_error(fitted, folder, tmp_path, capsys):
    loaded = torch.load(fitted[2], weights_only=True)
    bias = next(key for key in loaded["state_dict"] if key.endswith("head.bias"))
    loaded["state_dict"][bias].fill_(torch.nan)
    torch.save(loaded, tmp_path / "diverged.ckpt")
    output = tmp_path / "out.csv"
    args = [f"--ckpt_path={tmp_path / 'diverged.ckpt'}", f"--images={folder}"]
    assert main(["predict", *args, f"--output={output}"]) == 1
    assert capsys.readouterr().err == (
        "fedaux-pl predict: error: probabilities: got NaN for 12 of 12 samples; expected numbers: "
        "give a checkpoint from before the run diverged\n"
    )
    assert not output.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "missing option --ckpt_path: add it"),
        (["--ckpt_path=last"], "either --images PATH or --texts FILE"),
        (["--ckpt_path=last", "--images=x", "--texts=x"], "either --images PATH or --texts FILE"),
        (["--ckpt_path=last", "--images=x", "--size=3"], "--size"),
        (["--ckpt_path=last", "--image=a"], "no option --image (did you mean --images?)"),
    ],
)
def test_a_command_line_that_is_incomplete(args, words, capsys):
    assert main(["predict", *args]) == 2
    message = capsys.readouterr().err
    assert message.startswith("fedaux-pl predict: error: ")
    assert words in message
    assert "fedaux-pl predict --help" in message
