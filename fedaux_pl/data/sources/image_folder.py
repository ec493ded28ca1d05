"""Image files in a user's folders."""

import copy
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from fedaux_pl.data.image_files import is_image, list_images
from fedaux_pl.data.input_checks import (
    check_size,
    check_test_data,
    expand,
    note,
    path_not_found,
    shorten,
)
from fedaux_pl.data.labels import class_indices
from fedaux_pl.data.open_images import open_images
from fedaux_pl.data.pil_images import WHITE, check_background
from fedaux_pl.data.source import Examples, PartSource, Source, name_of_path
from fedaux_pl.errors import DataError, DataNotFoundError, check_setting
from fedaux_pl.names import readable

_TEST_SEED = 0  # of test_fraction; fixed, so that all runs have the same test data


class _File(NamedTuple):
    path: Path
    label: str = ""
    client: str = ""


class ImageFolder(PartSource):
    """Image files, in one sub-folder per class or, unlabeled, without sub-folders.

    With images in ``root/<class>/...`` the classes are the sub-folders in alphabetical order; with
    ``clients: first_level`` images are in ``root/<client>/<class>/...``, and every sub-folder of
    ``root`` is a client. With images directly in ``root`` there are no labels, and the source can
    be auxiliary data only. The central square of each image is scaled to ``size`` pixels (bilinear,
    antialiased). Links are followed, but every file counts once.

    Args:
        root: The folder of the training images.
        size: The height and width of the images.
        channels: 3 for color, 1 for gray.
        test_root: The folder of the test images, ``test_root/<class>/...`` with classes of
            ``root``, or ``test_root/<client>/<class>/...`` if ``root`` has such folders.
        cache_dir: The folder for decoded images; by default the user's cache folder.
        clients: ``first_level`` if each sub-folder of ``root`` holds the data of a client, with
            its name; null if the clients get a random split.
        validation_root: The folder of validation images, as ``test_root``.
        test_fraction: The fraction of ``root`` to hold out as test data, of each class alike and
            always the same images, if there is no ``test_root``. Every class and every client keeps
            at least one training image.
        on_error: What to do about files that cannot be read: ``raise`` an error, or ``skip`` them
            with a note that lists them.
        background: The color on which transparent pictures are put: a name such as ``white``, or
            ``rgb(R, G, B)`` with numbers up to 255. A note counts the transparent pictures.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from fedaux_pl.data import ImageFolder
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     Image.new("RGB", (64, 48)).save(root / name / "1.png")
        >>> train = ImageFolder(root, size=32).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 3, 32, 32]), ('cat', 'dog'))
    """

    remedy = (
        "set `test_root` to a folder of test images, or `test_fraction` to hold out a fraction of "
        "`root`, or choose another source for it"
    )

    def __init__(
        self,
        root: str | Path,
        size: int = 32,
        channels: Literal[1, 3] = 3,
        test_root: str | Path | None = None,
        cache_dir: str | Path | None = None,
        clients: Literal["first_level"] | None = None,
        validation_root: str | Path | None = None,
        test_fraction: float = 0.0,
        on_error: Literal["raise", "skip"] = "raise",
        background: str = WHITE,
    ) -> None:
        check_setting("channels", channels, channels in (1, 3), "be 3 (color) or 1 (gray)")
        is_known = clients in ("first_level", None)
        check_setting("clients", clients, is_known, "be 'first_level' or null")
        check_setting("on_error", on_error, on_error in ("raise", "skip"), "be 'raise' or 'skip'")
        check_test_data(test_fraction, "test_root", test_root)
        self.root = Path(root).expanduser()
        self.size = check_size(size)
        self.channels = channels
        self.test_root = expand(test_root)
        self.cache_dir = expand(cache_dir)
        self.clients = clients
        self.validation_root = expand(validation_root)
        self.test_fraction = test_fraction
        self.on_error = on_error
        self.background: str | None = check_background(background)  # None: see as_version_1
        self._has_transparent = False  # whether one of the pictures read so far is

    @property
    def data_name(self) -> str:
        """The name of the folder, or of the one above a folder such as ``train``."""
        return name_of_path(self.root)

    @property
    def input_format(self) -> dict[str, str | int]:
        """The background of transparent pictures."""
        return {"background": self.background or WHITE}

    def as_version_1(self) -> Source:
        """Return the source that uncovers the pixels of transparent pictures, if it read any."""
        if not self._has_transparent:
            return self
        former = copy.copy(self)
        former.background = None
        return former

    def load(self, part: str) -> Examples | None:
        """Load the images below ``root``, or those held out of it, or those of another folder."""
        other = {"test": self.test_root, "validation": self.validation_root}.get(part)
        is_held_out = part == "test" and self.test_fraction > 0
        if other is None and part != "train" and not is_held_out:
            return None
        folders = _list_folders(self.root)
        everything = _list_files(self.root, folders, self.clients is not None)
        if part == "test" and self.clients is None:
            _note_clients(self.root, folders)
        if other is not None:
            return self._read(other, self._list_other(other, everything), everything)
        test = self._held_out(everything) if self.test_fraction else set()
        files = [file for i, file in enumerate(everything) if (i in test) == is_held_out]
        return self._read(self.root, files, everything)

    def image_bytes(self) -> int:
        """The bytes of all images at ``size``."""
        count = 0
        for root in (self.root, self.test_root, self.validation_root):
            if root is not None:
                count += sum(map(len, _list_folders(root).values()))
        return count * self.channels * self.size**2

    def _held_out(self, files: list[_File]) -> set[int]:
        """Return the positions of the test images: of each class the same, over all clients."""
        if not _classes(files):
            raise DataError(
                f"test data must be labeled, but {self.root.absolute()} has no class folders: "
                "leave out `test_fraction`"
            )
        generator = torch.Generator().manual_seed(_TEST_SEED)
        order = torch.randperm(len(files), generator=generator).tolist()
        # at random within a client; the clients of a class side by side, so that equal steps
        # through the class take about the same share of each
        order.sort(key=lambda i: (files[i].label, files[i].client))
        held_out: set[int] = set()
        for _, group in groupby(order, key=lambda i: files[i].label):
            before = 0
            for count, i in enumerate(group, 1):
                after = int(count * self.test_fraction + 0.5)
                if after > before:
                    held_out.add(i)
                before = after
        for field in ("label", "client"):
            values = [getattr(file, field) for file in files]
            kept = {value for i, value in enumerate(values) if i not in held_out}
            for i, value in enumerate(values):
                if value not in kept:
                    held_out.remove(i)
                    kept.add(value)
        if not held_out:
            raise DataError(
                f"test_fraction = {self.test_fraction} of {len(files)} images in "
                f"{self.root.absolute()} holds out none: set a larger one, or `test_root`"
            )
        return held_out

    def _list_other(self, root: Path, everything: list[_File]) -> list[_File]:
        """List the images of another folder, with classes and clients of ``everything``."""
        folders = _list_folders(root)
        names = set(_classes(everything))
        has_clients = self.clients is not None and not set(folders) <= names
        files = _list_files(root, folders, has_clients)
        clients = {file.client for file in everything}
        for name in folders if has_clients else ():
            if name not in clients:
                raise DataError(
                    f"client {name!r} in {root.absolute()} has no training data: its folder is "
                    f"missing in {self.root.absolute()}, with {shorten(sorted(clients))}; add it, "
                    "or remove the other"
                )
        unknown = {file.label for file in files} - names
        if not names or unknown:
            raise DataError(
                f"the sub-folders of {root.absolute()} must have the names of the classes in "
                f"{self.root.absolute()}, but these are not: "
                f"{', '.join(sorted(unknown)) or '(no sub-folders)'}"
            )
        return files

    def _read(self, root: Path, files: list[_File], everything: list[_File]) -> Examples:
        """Read files, with the classes and clients of ``everything`` in ``self.root``."""
        paths = [file.path for file in files]
        skip = self.on_error == "skip"
        form = (self.size, self.channels, self.cache_dir, self.background)
        try:
            opened = open_images(paths, root, *form, skip=skip, on_disk=self.on_disk)
        except DataError as error:
            raise DataError(f"{error}{'' if skip else ', or set `on_error: skip`'}") from error
        self._has_transparent |= opened.has_transparent
        images = opened.images
        names = _classes(everything)
        if not names:
            return Examples(images)
        labels = class_indices([files[i].label for i in opened.positions], names)
        clients = [files[i].client for i in opened.positions]
        if not any(clients):
            return Examples(images, labels, names)
        lost = {file.client for file in files} - set(clients)
        if lost:
            raise DataError(
                f"no image of these clients in {root.absolute()} can be read: "
                f"{shorten(sorted(lost))}; repair the images, or remove the folders"
            )
        client_names = tuple(sorted({file.client for file in everything}))
        return Examples(images, labels, names, class_indices(clients, client_names), client_names)


def _classes(files: list[_File]) -> tuple[str, ...]:
    """Return the names of the classes; empty without labels."""
    return tuple(sorted({file.label for file in files} - {""}))


def _list_files(root: Path, folders: dict[str, list[Path]], has_clients: bool) -> list[_File]:
    """Return the files of ``root/<class>/``, or of ``root/<client>/<class>/``."""
    if not has_clients:
        return [_File(path, label) for label, paths in folders.items() for path in paths]
    if "" in folders:
        raise DataError(
            f"{root.absolute()}: got images; expected a folder for each client, with one for each "
            "class in it: move them, or set `clients: null`"
        )
    files = []
    for path in chain(*folders.values()):
        client, *inner = path.relative_to(root).parts
        if len(inner) < 2:
            raise DataError(
                f"{path.absolute()} is in no class folder: with `clients: first_level` images are "
                "in <root>/<client>/<class>/; move it, or set `clients: null`"
            )
        files.append(_File(path, readable(inner[0]), readable(client)))
    return files


def _note_clients(root: Path, folders: dict[str, list[Path]]) -> None:
    """Tell if the folders of all classes hold folders of the same names, as those of clients do."""
    if any(len(files[0].relative_to(root).parts) <= 2 for files in folders.values()):
        return  # images lie in the folder of a class: no need to look at all of them
    inner = set()
    for files in folders.values():
        inner.add(frozenset(file.relative_to(root).parts[1:-1][:1] for file in files))
    # "" for images outside of sub-folders
    names = sorted(readable("".join(parts)) for parts in inner.pop())
    if len(folders) > 1 and not inner and len(names) > 1 and all(names):
        note(
            f"the classes are {shorten(list(folders))}, but all of them have the same sub-folders "
            f"({shorten(names)}) in {root.absolute()}: if those are the classes, set "
            "`clients: first_level`, or `root` and `test_root` to folders of classes"
        )


def _list_folders(root: Path) -> dict[str, list[Path]]:
    """Return the sorted image files of each sub-folder; of "" if there are no sub-folders."""
    if not root.is_dir():
        raise path_not_found("No folder of images was found at", root)
    entries = sorted(root.iterdir())
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    loose = [entry for entry in entries if is_image(entry) and not entry.is_dir()]
    if not folders:
        if not loose:
            where = root.absolute()
            raise DataNotFoundError(f"No image files were found in {where}: put images there")
        return {"": list_images([root])[0]}
    if loose:
        raise DataError(
            f"{root.absolute()} holds both sub-folders and images (such as {loose[0].name}): move "
            "the images into the sub-folder of their class, or remove them"
        )
    names = [readable(folder.name) for folder in folders]
    if len(set(names)) < len(names):  # of two, one has the text that the bytes of the other become
        raise DataError(f"two sub-folders of {root.absolute()} have the same name: rename one")
    files = dict(zip(names, list_images(folders), strict=True))
    empty = [name for name in files if not files[name]]
    if empty:
        raise DataError(
            f"these sub-folders of {root.absolute()} hold no images: {', '.join(empty)}; remove "
            "them, or put images there"
        )
    return files
