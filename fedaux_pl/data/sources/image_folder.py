"""Images in folders of one's own."""

from pathlib import Path
from typing import Literal

from torch import Tensor, tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size, not_found
from fedaux_pl.data.sources._files import is_image, list_images, load_images
from fedaux_pl.errors import DataError


class ImageFolder(Source):
    """Image files, in one sub-folder for each class or, unlabeled, in no sub-folders.

    With images in ``root/<class>/...`` the classes are the sub-folders in alphabetic order; with
    images directly in ``root`` there are no labels, and the source can serve as auxiliary data
    only. Images are scaled so that the shorter side has ``size`` pixels (bilinear, antialiased),
    and what the longer side has in excess is cut off at both ends alike.

    Args:
        root: The folder of the (training) images.
        size: The height and width of the images that are returned.
        channels: 3 for colour, 1 for grey.
        test_root: The folder of the test images, with sub-folders named as in ``root``.
        cache_dir: Where to keep the decoded images; by default ``.fedaux_cache`` in each folder.
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
            raise ValueError(f"channels must be 3 (colour) or 1 (grey), but is {channels}")
        self.root = Path(root).expanduser()
        self.size = check_size(size)
        self.channels = channels
        self.test_root = None if test_root is None else Path(test_root).expanduser()
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def train(self) -> Examples:
        """The images below ``root``, with labels where there are sub-folders."""
        files = _list_classes(self.root)
        images = self._load(self.root, self.files())
        if "" in files:
            return Examples(images)
        names = tuple(files)
        labels = [label for label, name in enumerate(names) for _ in files[name]]
        return Examples(images, tensor(labels), names)

    def test(self) -> Examples:
        """The images below ``test_root``, with the labels that their classes have in ``root``."""
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
                f"the sub-folders of {self.test_root.absolute()} must be named like those of "
                f"{self.root.absolute()}, but these are not: {unknown or '(no sub-folders)'}"
            )
        images = self._load(self.test_root, [file for group in files.values() for file in group])
        labels = [names.index(name) for name, group in files.items() for _ in group]
        return Examples(images, tensor(labels), names)

    def files(self) -> list[Path]:
        """The files below ``root``, in the order of the images."""
        return [file for group in _list_classes(self.root).values() for file in group]

    def _load(self, root: Path, files: list[Path]) -> Tensor:
        return load_images(files, root, self.size, self.channels, self.cache_dir)


def _list_classes(root: Path) -> dict[str, list[Path]]:
    """The image files by class, sorted; under the name "" where there are no sub-folders."""
    if not root.is_dir():
        raise not_found("No folder of images was found at", root, "Correct the path")
    folders = sorted(
        folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )
    loose = sorted(file for file in root.iterdir() if is_image(file))
    if not folders:
        if not loose:
            raise not_found("No image files were found in", root, "Put images there")
        return {"": loose}
    if loose:
        raise DataError(
            f"{root.absolute()} holds both sub-folders and images beside them (such as "
            f"{loose[0].name}): move the images into the sub-folder of their class, or away"
        )
    classes = {folder.name: list_images(folder) for folder in folders}
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise DataError(
            f"these sub-folders of {root.absolute()} hold no images: {', '.join(empty)}; "
            "remove them, or put images there"
        )
    return classes
