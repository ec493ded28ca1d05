"""Image files in a user's folders."""

from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from fedaux_pl.data.images import is_image, list_images
from fedaux_pl.data.input_checks import check_size, check_test_data, expand, not_found, shorten
from fedaux_pl.data.labels import class_indices
from fedaux_pl.data.readers import open_images
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError

_TEST_SEED = 0  # of test_fraction; fixed, so that all runs have the same test data


class _File(NamedTuple):
    path: Path
    label: str = ""
    client: str = ""


class ImageFolder(Source):
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
        clients: ``first_level`` (formerly ``folders``) if each sub-folder of ``root`` holds the
            data of a client, with its name; null if the clients get a random split.
        validation_root: The folder of validation images, as ``test_root``.
        test_fraction: The fraction of ``root`` to hold out as test data, of each class alike and
            always the same images, if there is no ``test_root``. Every class and every client keeps
            at least one training image.
        on_error: What to do about files that cannot be read: ``raise`` an error, or ``skip`` them
            with a warning that lists them.

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

    def __init__(
        self,
        root: str | Path,
        size: int = 32,
        channels: Literal[1, 3] = 3,
        test_root: str | Path | None = None,
        cache_dir: str | Path | None = None,
        clients: Literal["first_level", "folders"] | None = None,
        validation_root: str | Path | None = None,
        test_fraction: float = 0.0,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if channels not in (1, 3):
            raise ValueError(f"channels must be 3 (color) or 1 (gray), but is {channels}")
        if clients not in ("first_level", "folders", None):
            raise ValueError(f"clients must be 'first_level' or null, but is {clients!r}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', but is {on_error!r}")
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

    @property
    def data_name(self) -> str:
        """The name of the folder."""
        return self.root.absolute().name

    def train(self) -> Examples:
        """The images below ``root``, with labels if there are sub-folders, less the test images."""
        everything = files = self._list_root()
        if self.test_fraction:
            held_out = self._held_out(files)
            files = [file for i, file in enumerate(files) if i not in held_out]
        return self._load(self.root, files, everything)

    def test(self) -> Examples:
        """The images below ``test_root``, or the held-out ones; with the classes of ``root``."""
        if self.test_root is not None:
            return self._load_other(self.test_root)
        if not self.test_fraction:
            raise DataError(
                "this ImageFolder has no test data: set `test_root` to a folder of test images, or "
                "`test_fraction` to hold out a fraction of `root`, or choose another source for it"
            )
        files = self._list_root()
        test = [files[i] for i in sorted(self._held_out(files))]
        return self._load(self.root, test, files)

    def validation(self) -> Examples | None:
        """The images below ``validation_root``, with the classes of ``root``; None without it."""
        return None if self.validation_root is None else self._load_other(self.validation_root)

    def image_bytes(self) -> int:
        """The bytes of all images at ``size``."""
        roots = [root for root in (self.root, self.test_root, self.validation_root) if root]
        count = sum(len(files) for root in roots for files in _list_folders(root).values())
        return count * self.channels * self.size**2

    def _list_root(self) -> list[_File]:
        folders = _list_folders(self.root)
        return _with_labels(folders) if self.clients is None else _with_clients(self.root, folders)

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
            for count, i in enumerate(group):
                before, after = (int(n * self.test_fraction + 0.5) for n in (count, count + 1))
                held_out |= {i} if after > before else set()
        for field in ("label", "client"):
            kept = {getattr(file, field) for i, file in enumerate(files) if i not in held_out}
            for i, file in enumerate(files):
                if getattr(file, field) not in kept:
                    held_out.remove(i)
                    kept.add(getattr(file, field))
        if not held_out:
            raise DataError(
                f"test_fraction = {self.test_fraction} of {len(files)} images in "
                f"{self.root.absolute()} holds out none: set a larger one, or `test_root`"
            )
        return held_out

    def _load_other(self, root: Path) -> Examples:
        """Load the images of another folder with the classes of ``root``."""
        everything, folders = self._list_root(), _list_folders(root)
        names, clients = _classes(everything), {file.client for file in everything}
        if self.clients is None or set(folders) <= set(names):
            files = _with_labels(folders)
        else:
            files = _with_clients(root, folders)
            if lost := sorted(set(folders) - clients):
                raise DataError(
                    f"client {lost[0]!r} in {root.absolute()} has no training data: its folder is "
                    f"missing in {self.root.absolute()}, with {shorten(sorted(clients))}; add it, "
                    "or remove the other"
                )
        labels = {file.label for file in files}
        if not names or not labels <= set(names):
            unknown = ", ".join(sorted(labels - set(names)))
            raise DataError(
                f"the sub-folders of {root.absolute()} must have the names of the classes in "
                f"{self.root.absolute()}, but these are not: {unknown or '(no sub-folders)'}"
            )
        return self._load(root, files, everything)

    def _load(self, root: Path, files: list[_File], everything: list[_File]) -> Examples:
        """Load files, with the classes and clients of ``everything`` in ``self.root``."""
        names = _classes(everything)
        paths, skip = [file.path for file in files], self.on_error == "skip"
        form = (self.size, self.channels, self.cache_dir)
        try:
            images, positions = open_images(paths, root, *form, skip=skip, on_disk=self.on_disk)
        except DataError as error:
            remedy = "" if skip else ", or set `on_error: skip`"
            raise DataError(f"{error}{remedy}") from error
        if not names:
            return Examples(images)
        read = [files[i] for i in positions]
        labels = class_indices([file.label for file in read], names)
        owners = [file.client for file in read]
        if not any(owners):
            return Examples(images, labels, names)
        if lost := sorted({file.client for file in files} - set(owners)):
            raise DataError(
                f"no image of these clients in {root.absolute()} can be read: {shorten(lost)}; "
                "repair the images, or remove the folders"
            )
        clients = sorted({file.client for file in everything})
        return Examples(images, labels, names, class_indices(owners, clients), tuple(clients))


def _classes(files: list[_File]) -> tuple[str, ...]:
    """Return the names of the classes; empty without labels."""
    return tuple(sorted({file.label for file in files} - {""}))


def _with_labels(folders: dict[str, list[Path]]) -> list[_File]:
    return [_File(path, label) for label, paths in folders.items() for path in paths]


def _with_clients(root: Path, folders: dict[str, list[Path]]) -> list[_File]:
    """Return the files of ``root/<client>/<class>/``."""
    if "" in folders:
        raise DataError(
            f"{root.absolute()} must hold a folder for each client, with a folder for each class "
            "in it, but holds images: move them, or set `clients: null`"
        )
    files = []
    for path in chain(*folders.values()):
        client, *inner = path.relative_to(root).parts
        if len(inner) < 2:
            raise DataError(
                f"{path.absolute()} is in no class folder: with `clients: first_level` images are "
                "in <root>/<client>/<class>/; move it, or set `clients: null`"
            )
        files.append(_File(path, inner[0], client))
    return files


def _list_folders(root: Path) -> dict[str, list[Path]]:
    """Return the sorted image files of each sub-folder; of "" if there are no sub-folders."""
    if not root.is_dir():
        raise not_found("No folder of images was found at", root, "Correct the path")
    entries = sorted(root.iterdir())
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    loose = [entry for entry in entries if is_image(entry) and not entry.is_dir()]
    if not folders:
        if not loose:
            raise not_found("No image files were found in", root, "Put images there")
        return {"": list_images([root])[0]}
    if loose:
        raise DataError(
            f"{root.absolute()} holds both sub-folders and images (such as {loose[0].name}): move "
            "the images into the sub-folder of their class, or remove them"
        )
    names = [folder.name for folder in folders]
    found = dict(zip(names, list_images(folders), strict=True))
    if empty := [name for name, files in found.items() if not files]:
        raise DataError(
            f"these sub-folders of {root.absolute()} hold no images: {', '.join(empty)}; "
            "remove them, or put images there"
        )
    return found
