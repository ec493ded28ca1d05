"""Texts in files of one's own."""

from pathlib import Path

import torch
from torch import Tensor

from fedaux_pl.data.cache import FOLDER, fingerprint
from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._text import TextSource, check_limit, draw
from fedaux_pl.data.tables import Columns, read_texts
from fedaux_pl.errors import DataError, DataNotFoundError

_SPLIT = 1  # of the seeds that are drawn from


class TextFiles(TextSource):
    """Texts in a CSV (or .tsv), JSON-lines or plain text file, which may be .xz, .gz or .bz2.

    A CSV file names its columns in its first line; a .txt file has a text on every line and no
    labels, and can serve as auxiliary data only. Labels may be names or numbers: without
    ``classes`` every different label of the training file is a class, in the order of their
    values where all are integers, and in alphabetic order otherwise. Rows without a text are left
    out, with a warning.

    Args:
        path: The file.
        test_path: The file of the test data, with the same columns.
        text: The column of the texts, or several, whose values are joined by a space.
        label: The column of the labels; null where there are none.
        classes: The names of the classes in their order; the labels are then these names, or
            their numbers from 0.
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            small English vocabulary that comes with the package.
        max_length: How many tokens of a text are kept; shorter ones are padded to that length.
        limit: How many texts are drawn at random; null for all.
        test_share: The share of ``path`` that is held out as test data, without a ``test_path``.
        skip: Lines of a .txt file that begin with this are left out, such as headings.
        sentences: Whether every sentence of an unlabeled text is a text of its own.
        seed: Of what is drawn.
        cache_dir: Where to keep the token ids; by default ``.fedaux_cache`` beside the file.
    """

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        text: str | list[str] = "text",
        label: str | None = "label",
        classes: list[str] | None = None,
        tokenizer: str | Path | None = None,
        max_length: int = 128,
        limit: int | None = None,
        test_share: float = 0.0,
        skip: str = "",  # not optional: as one, the command line would read "#" as null
        sentences: bool = False,
        seed: int = 0,
        cache_dir: str | Path | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length)
        if not 0 <= test_share < 1:
            raise ValueError(f"test_share must lie in 0 ... 1, without 1, but is {test_share}")
        if test_share and test_path is not None:
            raise ValueError("test data come from test_path or from test_share, not from both")
        if sentences and label is not None:
            raise ValueError("sentences have no labels of their own: set label to null")
        self.path = Path(path).expanduser()
        self.test_path = None if test_path is None else Path(test_path).expanduser()
        self.text = text
        self.label = label
        self.classes = classes
        self.limit = check_limit(limit)
        self.test_share = test_share
        self.skip = skip
        self.sentences = sentences
        self.seed = seed
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def train(self) -> Examples:
        """The texts of ``path``, without those that are held out."""
        return self._load(self.path, self.label, "train")

    def test(self) -> Examples:
        """The texts of ``test_path``, or those of ``path`` that are held out."""
        if self.test_path is None and not self.test_share:
            raise DataError(
                "this TextFiles has no test data: set `test_path`, or `test_share` to hold a part "
                "of `path` out, or choose another source for it"
            )
        if self.test_path is None:
            return self._load(self.path, self.label, "test")
        names = self.train().classes if self.classes is None else ()
        return self._load(self.test_path, self.label, "all", names)

    def auxiliary(self) -> Tensor:
        """The training texts; labels are not read and may be missing."""
        return self._load(self.path, None, "train").inputs

    def _load(
        self, path: Path, label: str | None, part: str, names: tuple[str, ...] = ()
    ) -> Examples:
        if not path.is_file():
            raise DataNotFoundError(
                f"there is no file of texts at {path.absolute()}: correct the path; to run without "
                "files of your own use the embedded texts: `configs/text_quickstart.yaml`"
            )
        texts = (self.text,) if isinstance(self.text, str) else tuple(self.text)
        columns = Columns(texts, label, self.skip, self.sentences)
        key: dict[str, str | int] = {
            "files": fingerprint([path]),
            "columns": repr(columns),
            "part": part,
            "drawn": repr((self.limit, self.test_share, self.seed)),
        }
        folder = path.parent / FOLDER if self.cache_dir is None else self.cache_dir
        return self.kept(
            folder, key, lambda: self._read(path, columns, part), names or self.classes or ()
        )

    def _read(self, path: Path, columns: Columns, part: str) -> tuple[list[str], list[str]]:
        texts, labels = read_texts(path, columns)
        where = torch.arange(len(texts))
        if part != "all" and self.test_share:
            held = draw(len(texts), round(len(texts) * self.test_share), self.seed + _SPLIT)
            mask = torch.zeros(len(texts), dtype=torch.bool)
            mask[held] = True
            where = where[mask if part == "test" else ~mask]
        if part == "train":
            where = where[draw(len(where), self.limit, self.seed)]
        chosen = where.tolist()
        return [texts[i] for i in chosen], [labels[i] for i in chosen] if labels else []
