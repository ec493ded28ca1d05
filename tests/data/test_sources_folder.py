"""Folders of image files."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedaux_pl.data import open_images
from fedaux_pl.data.input_checks import note
from fedaux_pl.data.sources import ImageFolder
from fedaux_pl.errors import DataError, DataNotFoundError


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return torch.from_numpy(pixels).permute(2, 0, 1) if pixels.ndim == 3 else pixels


@pytest.fixture
def noise():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def picture(tmp_path, noise):
    """Save a square of noise below the folder of the test, and return its pixels."""
    return lambda path, size=4: save(tmp_path / path, noise(size, size, 3))


def test_labeled(tmp_path, picture):
    cat = picture("cat/b.png", 6)
    deep = picture("cat/a/more.BMP", 6)
    ant = picture("ant/1.png", 6)
    (tmp_path / "ant/notes.txt").write_text("not an image")
    (tmp_path / "ant/._1.png").write_bytes(b"what an archive of macOS leaves")
    (tmp_path / ".hidden").mkdir()
    examples = ImageFolder(tmp_path, size=6).train()
    assert torch.equal(examples.inputs, torch.stack([ant, deep, cat]))
    assert examples.labels.tolist() == [0, 1, 1]
    assert examples.classes == ("ant", "cat")


def test_test_images_have_the_classes_of_training(tmp_path, picture):
    for name in ("ant", "bee", "cat"):
        picture(f"train/{name}/1.png")
    image = picture("test/cat/2.png")
    source = ImageFolder(tmp_path / "train", size=4, test_root=tmp_path / "test")
    test = source.test()
    assert torch.equal(test.inputs[0], image)
    assert test.labels.tolist() == [2]
    assert test.classes == source.train().classes
    picture("test/dog/3.png")
    with pytest.raises(DataError, match="these are not: dog"):
        source.test()
    with pytest.raises(DataError, match="set `test_root`"):
        ImageFolder(tmp_path / "train").test()


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_crops_the_central_square(tmp_path, noise, shape):
    pixels = noise(*shape, 3)
    save(tmp_path / "a.png", pixels)
    square = pixels[2:8] if shape[0] > shape[1] else pixels[:, 2:8]
    source = ImageFolder(tmp_path, size=6)
    for _ in range(2):  # the second time from the cache
        assert torch.equal(source.auxiliary()[0], torch.from_numpy(square).permute(2, 0, 1))
        assert source.train().labels is None


def test_scales_without_aliasing(tmp_path):
    # stripes one pixel wide: without the filter the result is black or white, with it gray
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:, ::2] = 254
    save(tmp_path / "a.png", pixels)
    got = ImageFolder(tmp_path, size=4).auxiliary()
    assert (got.int() - 127).abs().max() <= 8


def test_modes(tmp_path, noise):
    gray = noise(4, 4)
    save(tmp_path / "gray.png", gray)
    color = noise(4, 4, 4)
    color[..., 3] = 255
    save(tmp_path / "rgba.png", color)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "palette.png", transparency=bytes([0, 255]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ImageFolder(tmp_path, size=4).auxiliary()
    assert torch.equal(found[0], torch.from_numpy(gray).expand(3, 4, 4))
    assert found[1, :, 0, 0].tolist() == [10, 20, 30]
    assert torch.equal(found[2], torch.from_numpy(color[..., :3]).permute(2, 0, 1))
    found = ImageFolder(tmp_path, size=4, channels=1).auxiliary()
    assert torch.equal(found[0, 0], torch.from_numpy(gray))


def test_many_files_stay_in_order(tmp_path):
    for i in range(200):
        save(tmp_path / f"{i:03d}.png", np.full((3, 3, 3), i, dtype=np.uint8))
    got = ImageFolder(tmp_path, size=3).auxiliary()
    assert got[:, 0, 0, 0].tolist() == list(range(200))


@pytest.mark.parametrize("damage", ["text", "truncated", "16 bit"])
def test_error_names_the_unreadable_file(tmp_path, picture, damage):
    picture("good.png", 40)
    bad = tmp_path / "bad.png"
    if damage == "text":
        bad.write_text("no image")
    elif damage == "truncated":
        bad.write_bytes((tmp_path / "good.png").read_bytes()[:2000])
    else:
        Image.fromarray(np.full((9, 9), 40_000, dtype=np.uint16)).save(bad)
    with pytest.raises(DataError, match=f"cannot read the image {bad} .*, or set `on_error: skip`"):
        ImageFolder(tmp_path).auxiliary()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("photos/trian", "photos/train"),
        ("Photo/train", "photos/train"),
        ("fotos/trian", "photos/train"),
        ("photos/Test", None),
        ("elsewhere/train", None),
    ],
)
def test_a_misspelled_path_names_the_one_that_is_there(
    given, meant, tmp_path, picture, monkeypatch
):
    picture("photos/train/ant/1.png")
    monkeypatch.chdir(tmp_path)
    hint = f" (did you mean {meant}?)" if meant else ""
    for path, hint_of_path in (
        (Path(given), hint),
        (tmp_path / given, hint.replace("photos", f"{tmp_path}/photos")),
    ):
        with pytest.raises(DataNotFoundError) as refused:
            ImageFolder(path).train()
        problem = f"No folder of images was found at {tmp_path / given}"
        assert str(refused.value) == f"{problem}{hint_of_path}: correct the path"


def test_folders_without_images(tmp_path, picture):
    with pytest.raises(DataNotFoundError, match=f"at {tmp_path}/none: correct the path$"):
        ImageFolder(tmp_path / "none").train()
    with pytest.raises(DataNotFoundError, match=f"No image files were found in {tmp_path}"):
        ImageFolder(tmp_path).train()
    picture("ant/1.png")
    (tmp_path / "bee").mkdir()
    with pytest.raises(DataError, match="hold no images: bee; remove them, or put images there"):
        ImageFolder(tmp_path).train()
    picture("loose.png")
    with pytest.raises(DataError, match=r"both sub-folders and images.*loose\.png"):
        ImageFolder(tmp_path).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 2}, "channels: got 2; expected to be 3"),
        ({"size": -1}, "size: got"),
        ({"test_fraction": 1.0}, "test_fraction: got"),
        ({"test_fraction": 0.5, "test_root": "y"}, "set one, not both"),
        ({"clients": "files"}, "clients: got"),
        ({"on_error": "ignore"}, "on_error: got"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ImageFolder("data", **options)


def test_decoded_once_until_a_file_changes(tmp_path, picture, monkeypatch):
    calls = []
    decode = open_images.read_image
    monkeypatch.setattr(
        open_images, "read_image", lambda *args: calls.append(args) or decode(*args)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    picture("images/a.png", 5)

    def load(size=5, **options):
        return ImageFolder(tmp_path / "images", size=size, **options).auxiliary()

    first = load()
    assert torch.equal(load(), first)
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["a.png"]
    load(size=4)
    load(cache_dir=tmp_path / "cache")
    assert len(calls) == 3
    changed = picture("images/a.png", 6)
    assert torch.equal(load(size=6)[0], changed)
    picture("images/b.png", 5)
    assert len(load()) == 2
    # files of the same name: each folder has an entry of its own
    other = picture("other/a.png", 5)
    assert torch.equal(ImageFolder(tmp_path / "other", size=5).auxiliary()[0], other)
    assert len(list((tmp_path / "user/fedaux_pl").glob("files-*.pt"))) == 5
    assert len(list((tmp_path / "cache").glob("files-*.pt"))) == 1


def test_links_to_folders_above_are_not_followed(tmp_path, picture, capsys):
    root = tmp_path / "data/train"
    pixels = {name: picture(f"data/train/{name}/1.png") for name in ("cat", "dog")}
    picture("data/test/cat/2.png")
    (root / "cat/up").symlink_to("..")
    (root / "cat/higher").symlink_to(tmp_path / "data")
    (root / "cat/loop").symlink_to(".")
    train = ImageFolder(root, size=4).train()
    message = r"note: 3 links to a folder above, .* such as .*/cat/higher\n"
    assert re.fullmatch(message, capsys.readouterr().err)
    assert torch.equal(train.inputs, torch.stack([pixels["cat"], pixels["dog"]]))
    assert train.labels.tolist() == [0, 1]


def test_every_file_counts_once_and_where_it_is(tmp_path, picture, capsys):
    root = tmp_path / "train"
    elsewhere = tmp_path / "elsewhere"
    dog = picture("train/dog/1.png")
    cat = picture("elsewhere/cats/2.png")
    more = picture("elsewhere/more.png")
    (root / "cat").mkdir()
    (root / "cat/cats").symlink_to(elsewhere / "cats")  # outside: followed
    (root / "cat/more.png").symlink_to(elsewhere / "more.png")
    (elsewhere / "cats/back").symlink_to(elsewhere / "cats")
    expected = torch.stack([cat, more, dog])
    train = ImageFolder(root, size=4).train()
    assert capsys.readouterr().err.startswith("note: 1 links")
    assert torch.equal(train.inputs, expected)
    (root / "cat/again").symlink_to(root / "dog")
    (root / "cat/dog.png").symlink_to(root / "dog/1.png")
    (root / "cat/twice.png").symlink_to(root / "cat/more.png")
    (root / "dog/cats").symlink_to(elsewhere / "cats")
    train = ImageFolder(root, size=4).train()
    assert capsys.readouterr().err.startswith("note: 5 links")
    assert torch.equal(train.inputs, expected)
    assert train.labels.tolist() == [0, 0, 1]


def test_linked_folders_and_hidden_stores(tmp_path, picture):
    cat = picture("store/1.png")
    dog = picture("train/.store/2.png")
    (tmp_path / "train/cat").symlink_to(tmp_path / "store")
    (tmp_path / "train/dog").mkdir()
    (tmp_path / "train/dog/2.png").symlink_to("../.store/2.png")
    train = ImageFolder(tmp_path / "train", size=4).train()
    assert torch.equal(train.inputs, torch.stack([cat, dog]))
    (tmp_path / "train/dog/3.png").symlink_to("nowhere.png")
    with pytest.raises(DataError, match=r"dog/3\.png is neither a file nor a link to a file"):
        ImageFolder(tmp_path / "train", size=4).train()


@pytest.fixture
def sites(picture):
    """Two clients, of which one has a class that the other lacks; the images by path."""
    paths = ["b/cat/1.png", "b/cat/deep/2.png", "b/dog/3.png", "a/cat/4.png", "a/ant/5.png"]
    return {path: picture(f"sites/{path}") for path in paths}


def test_a_folder_for_each_client(tmp_path, sites, picture):
    test = picture("test/dog/1.png")
    options = {"size": 4, "clients": "first_level", "test_root": tmp_path / "test"}
    source = ImageFolder(tmp_path / "sites", validation_root=tmp_path / "test", **options)
    train = source.train()
    order = ["a/ant/5.png", "a/cat/4.png", "b/cat/1.png", "b/cat/deep/2.png", "b/dog/3.png"]
    assert torch.equal(train.inputs, torch.stack([sites[path] for path in order]))
    assert train.classes == ("ant", "cat", "dog")
    assert train.labels.tolist() == [0, 1, 1, 1, 2]
    assert train.client_names == ("a", "b")
    assert train.clients.tolist() == [0, 0, 1, 1, 1]
    for examples in (source.test(), source.validation()):
        assert torch.equal(examples.inputs[0], test)
        assert (examples.labels.tolist(), examples.classes) == ([2], train.classes)
        assert examples.clients is None
    picture("by_client/b/dog/1.png")
    options["test_root"] = tmp_path / "by_client"
    by_client = ImageFolder(tmp_path / "sites", **options).test()
    assert (by_client.clients.tolist(), by_client.client_names) == ([1], ("a", "b"))
    assert by_client.labels.tolist() == [2]
    picture("by_client/c/dog/1.png")
    with pytest.raises(
        DataError, match=r"client 'c' in .* has no training data: .*; add it, or rem"
    ):
        ImageFolder(tmp_path / "sites", **options).test()
    assert ImageFolder(tmp_path / "sites", size=4).train().classes == ("a", "b")
    assert ImageFolder(tmp_path / "sites", size=4).validation() is None


def test_classes_that_look_like_clients_are_named(tmp_path, picture, capsys):
    for path in ("a/cat/1.png", "a/dog/2.png", "b/cat/3.png", "b/dog/4.png"):
        picture(path)
    ImageFolder(tmp_path, size=4, test_fraction=0.5).test()
    message = r"note: .* a, b, .*the same sub-folders \(cat, dog\).*`clients: first_level`"
    assert re.match(message, capsys.readouterr().err)
    ImageFolder(tmp_path, size=4, clients="first_level", test_fraction=0.5).test()
    (tmp_path / "a/dog").rename(tmp_path / "a/fox")
    assert ImageFolder(tmp_path, size=4, test_fraction=0.5).test().classes == ("a", "b")
    assert capsys.readouterr().err == ""


def test_folders_that_are_no_clients(tmp_path, sites, picture):
    source = ImageFolder(tmp_path / "sites", clients="first_level")
    picture("sites/a/loose.png")
    with pytest.raises(DataError, match=r"a/loose\.png is in no class folder: .* `clients: null`"):
        source.train()
    picture("flat/1.png")
    with pytest.raises(DataError, match=r"got images; expected a folder for each client"):
        ImageFolder(tmp_path / "flat", clients="first_level").train()
    (tmp_path / "sites/c").mkdir()
    with pytest.raises(DataError, match="hold no images: c"):
        source.train()


def pixel(examples):
    return examples.inputs[:, 0, 0, 0].tolist()


def numbered(root, sizes):
    """Image i of all has pixels i; ``sizes`` are by folder."""
    numbers = {}
    for folder, size in sizes.items():
        first = sum(map(len, numbers.values()))
        numbers[folder] = list(range(first, first + size))
        for i in numbers[folder]:
            save(root / folder / f"{i:03d}.png", np.full((2, 2, 3), i, dtype=np.uint8))
    return numbers


def test_a_stratified_share_is_held_out_as_test_data(tmp_path):
    numbers = numbered(tmp_path, {"cat": 20, "dog": 10, "eel": 1})
    source = ImageFolder(tmp_path, size=2, test_fraction=0.2)
    train, test = source.train(), source.test()
    assert sorted(pixel(train) + pixel(test)) == list(range(31))
    assert torch.bincount(test.labels, minlength=3).tolist() == [4, 2, 0]
    assert train.classes == test.classes == ("cat", "dog", "eel")
    for examples in (train, test):
        for number, label in zip(pixel(examples), examples.labels.tolist(), strict=True):
            assert number in numbers[examples.classes[label]]
    assert pixel(test) != [0, 1, 2, 3, 20, 21]
    assert pixel(ImageFolder(tmp_path, size=2, test_fraction=0.2).test()) == pixel(test)
    # every class keeps a training image
    assert torch.bincount(ImageFolder(tmp_path, size=2, test_fraction=0.9).train().labels)[2] == 1


def test_a_share_of_every_client_is_test_data(tmp_path):
    sizes = {"a/cat": 10, "a/dog": 10, "b/cat": 10, "b/dog": 5, "c/dog": 1}
    numbers = numbered(tmp_path, sizes)
    source = ImageFolder(tmp_path, size=2, test_fraction=0.2, clients="first_level")
    train, test = source.train(), source.test()
    assert train.client_names == test.client_names == ("a", "b", "c")  # c has a single image
    assert torch.bincount(test.clients).tolist() == [4, 3]
    assert sorted(pixel(train) + pixel(test)) == list(range(36))
    held = {folder: len(set(own) & set(pixel(test))) for folder, own in numbers.items()}
    assert held == {"a/cat": 2, "a/dog": 2, "b/cat": 2, "b/dog": 1, "c/dog": 0}
    most = ImageFolder(tmp_path, size=2, test_fraction=0.9, clients="first_level").train()
    assert most.client_names == ("a", "b", "c")


def test_a_share_that_cannot_be_held_out(tmp_path, picture):
    numbered(tmp_path / "few", {"cat": 2, "dog": 2})
    with pytest.raises(DataError, match=r"test_fraction = 0\.1 of 4 images .* holds out none"):
        ImageFolder(tmp_path / "few", test_fraction=0.1).test()
    picture("flat/1.png")
    with pytest.raises(DataError, match=r"must be labeled, .* leave out `test_fraction`"):
        ImageFolder(tmp_path / "flat", test_fraction=0.5).train()


def test_files_that_cannot_be_read_are_skipped_and_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    root = tmp_path / "images"
    numbered(root, {"a/cat": 4, "a/dog": 4, "b/cat": 4})
    for name in ("a/cat/001.png", "b/cat/009.png"):
        (root / name).write_text("no image")
    source = ImageFolder(root, size=2, clients="first_level", on_error="skip")
    message = r"note: 2 of 12 image files .* are skipped: a/cat/001\.png, b/cat/009\.png\n"
    for _ in range(2):  # the second time from the cache
        note.cache_clear()
        train = source.train()
        assert re.fullmatch(message, capsys.readouterr().err)
        assert pixel(train) == [0, 2, 3, 4, 5, 6, 7, 8, 10, 11]
        assert train.labels.tolist() == [0] * 3 + [1] * 4 + [0] * 3
        assert train.clients.tolist() == [0] * 7 + [1] * 3
    source.train()
    assert capsys.readouterr().err == ""  # a process says it once
    with pytest.raises(DataError, match=r"cannot read the image .*/a/cat/001\.png"):
        ImageFolder(root, size=2, clients="first_level").train()

    bad = sorted((root / "b/cat").iterdir())
    for path in bad:
        path.write_text("no image")
    with pytest.raises(DataError, match=r"no image of these clients .* can be read: b;"):
        source.train()
    assert "5 of 12" in capsys.readouterr().err
    (root / "a/cat/000.png").write_text("no image")
    ImageFolder(root, size=2, on_error="skip").train()
    message = r"note: 6 of 12 .* 1 more; all are listed in (.*)\n"
    listing = Path(re.fullmatch(message, capsys.readouterr().err)[1])
    names = [str(root / "a/cat" / f"00{i}.png") for i in (0, 1)] + [str(path) for path in bad]
    assert listing.read_text().splitlines() == names

    for path in root.rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(DataError, match=f"no image file in {root} can be read: cannot read"):
        ImageFolder(root, on_error="skip").train()
