"""Images in NumPy files of one's own."""

from pathlib import Path

from torch import Tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size
from fedaux_pl.data.sources._npz import has_array, read_array, read_images, read_labels
from fedaux_pl.data.sources._resize import resize


class NpzImages(Source):
    """Arrays in a file written by ``numpy.savez`` or ``numpy.savez_compressed``.

    Images are uint8 of shape (N, C, H, W), (N, H, W, C) or (N, H, W); the channels are taken to be
    last where the last dimension is 1 or 3 and the second is not.

    Args:
        path: The file.
        test_path: The file of the test arrays, where it is another one.
        images: The name of the training images.
        labels: The name of their labels (integers, from 0); null where there are none. Without
            labels the source can serve as auxiliary data only.
        test_images: The name of the test images.
        test_labels: The name of their labels.
        classes: The name of an array of class names in ``path``; by default "classes", where there
            is one, and the numbers of the classes otherwise.
        size: The height and width to which images are scaled (bilinear, antialiased), by default
            as they are. Of images that are not square the square in the middle is taken.
    """

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        images: str = "train_x",
        labels: str | None = "train_y",
        test_images: str = "test_x",
        test_labels: str = "test_y",
        classes: str | None = None,
        size: int | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.test_path = self.path if test_path is None else Path(test_path).expanduser()
        self.images = images
        self.labels = labels
        self.test_images = test_images
        self.test_labels = test_labels
        self.classes = classes
        self.size = None if size is None else check_size(size)

    def train(self) -> Examples:
        """The training images, labelled unless ``labels`` is null."""
        if self.labels is None:
            return Examples(self.auxiliary())
        hint = "; set `labels: null` if the images have none, and use them as auxiliary data"
        labels = read_labels(self.path, self.labels, hint)
        return Examples(self.auxiliary(), labels, self._names(labels))

    def test(self) -> Examples:
        """The test images, with the classes of the training images."""
        labels = read_labels(self.test_path, self.test_labels)
        known = labels if self.labels is None else read_labels(self.path, self.labels)
        return Examples(self._read(self.test_path, self.test_images), labels, self._names(known))

    def auxiliary(self) -> Tensor:
        """The training images; their labels are not read and may be missing."""
        return self._read(self.path, self.images)

    def _read(self, path: Path, name: str) -> Tensor:
        images = read_images(path, name)
        return images if self.size is None else resize(images, self.size)

    def _names(self, labels: Tensor) -> tuple[str, ...]:
        if self.classes is None and not has_array(self.path, "classes"):
            count = int(labels.max()) + 1 if len(labels) else 0
            return tuple(str(label) for label in range(count))
        names = read_array(self.path, self.classes or "classes")
        return tuple(str(name) for name in names.tolist())
