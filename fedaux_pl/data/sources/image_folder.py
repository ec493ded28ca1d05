"""Image files in a user's folders."""

from itertools import chain
from pathlib import Path
from typing import Literal

from torch import tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size, not_found
from fedaux_pl.data.sources._image_files import is_image, list_images, load_images
from fedaux_pl.errors import DataError


class ImageFolder(Source):
    """Image files, in one sub-folder per class or, unlabeled, without sub-folders.

    With images in ``root/<class>/...`` the classes are the sub-folders in alphabetical order. With
    images directly in ``root`` there are no labels, and the source can be auxiliary data only. The
    central square of each image is scaled to ``size`` pixels (bilinear, antialiased). Links are
    followed, but every file counts once.

    Args:
        root: The folder of the training images.
        size: The height and width of the images.
        channels: 3 for color, 1 for gray.
        test_root: The folder of the test images, with the same names of sub-folders as ``root``.
        cache_dir: The folder for decoded images; by default ``.fedaux_cache`` in each folder.

    Example:
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
    ) -> None:
        if channels not in (1, 3):
            raise ValueError(f"channels must be 3 (color) or 1 (gray), but is {channels}")
        self.root = Path(root).expanduser()
        self.size = check_size(size)
        self.channels = channels
        self.test_root = None if test_root is None else Path(test_root).expanduser()
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def train(self) -> Examples:
        """The images below ``root``, with labels if there are sub-folders."""
        files = _list_classes(self.root)
        return self._load(self.root, files, () if "" in files else tuple(files))

    def test(self) -> Examples:
        """The images below ``test_root``, with the classes of ``root``."""
        if self.test_root is None:
            raise DataError(
                "this ImageFolder has no test data: set `test_root` to a folder of test images, "
                "or choose another source for it"
            )
        names = tuple(_list_classes(self.root))
        files = _list_classes(self.test_root)
        if "" in names or not set(files) <= set(names):
            unknown = ", ".join(sorted(set(files) - set(names)))
            raise DataError(
                f"the sub-folders of {self.test_root.absolute()} must have the names of those of "
                f"{self.root.absolute()}, but these are not: {unknown or '(no sub-folders)'}"
            )
        return self._load(self.test_root, files, names)

    def files(self) -> list[Path]:
        """The files below ``root``, in the order of the images."""
        return list(chain.from_iterable(_list_classes(self.root).values()))

    def _load(self, root: Path, files: dict[str, list[Path]], names: tuple[str, ...]) -> Examples:
        """Loads the files of each class; without labels if there are no ``names``."""
        paths = list(chain.from_iterable(files.values()))
        images = load_images(paths, root, self.size, self.channels, self.cache_dir)
        if not names:
            return Examples(images)
        labels = [names.index(name) for name, group in files.items() for _ in group]
        return Examples(images, tensor(labels), names)


def _list_classes(root: Path) -> dict[str, list[Path]]:
    """The sorted image files of each class; of the class "" if there are no sub-folders."""
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
    classes = dict(zip(names, list_images(folders), strict=True))
    if empty := [name for name, files in classes.items() if not files]:
        raise DataError(
            f"these sub-folders of {root.absolute()} hold no images: {', '.join(empty)}; "
            "remove them, or put images there"
        )
    return classes
