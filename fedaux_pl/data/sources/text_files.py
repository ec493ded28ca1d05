"""Texts in a user's files."""

from pathlib import Path

import torch
from torch import Tensor

from fedaux_pl.data.cache import fingerprint
from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._checks import expand
from fedaux_pl.data.sources._text_source import TextSource, check_limit, sample_positions
from fedaux_pl.data.text_reader import Columns, Texts, read_texts
from fedaux_pl.errors import DataError, DataNotFoundError
from fedaux_pl.files import user_cache

_TEST_SEED_OFFSET = 1  # test texts are drawn with another seed than the ``limit`` training texts


class TextFiles(TextSource):
    r"""Texts in a .csv, .tsv, .jsonl or .txt file, which may be compressed (.xz, .gz, .bz2).

    The first line of a CSV file names its columns. A .txt file has one text per line and no
    labels, and can be auxiliary data only. Labels are class names or integers: without ``classes``
    and ``data.classes`` the distinct labels of the training file are the classes, sorted by value
    if all are integers and alphabetically otherwise. Rows without a text are skipped with a
    warning.

    Args:
        path: The file.
        test_path: The file of the test data, with the same columns.
        text: The column of the texts, or several columns, whose values are joined by a space.
        label: The column of the labels; null for none.
        classes: The names of the classes, in order; the labels are these names or, unless a name
            is such an index itself, their indices from 0.
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            small English vocabulary of the package.
        max_length: The number of token ids of a text; longer texts are truncated, shorter padded.
        limit: The number of training texts, drawn at random; null for all.
        test_share: The share of ``path`` to hold out as test data, if there is no ``test_path``.
        skip: Lines of a .txt file that start with this prefix, such as headings, are skipped.
        sentences: Whether to split unlabeled texts into sentences, each of them one sample.
        seed: The seed of the draws.
        cache_dir: The folder for token ids; by default the user's cache folder.
        client_column: The column of ``path`` that names the client of each text; null if the
            clients get a random split.
        validation_path: The file of validation data, with the same columns as ``test_path``.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedaux_pl.data import TextFiles
        >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
        >>> _ = path.write_text("text,label\na good book,good\na dull film,bad\n")
        >>> train = TextFiles(path, max_length=8).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 8]), ('bad', 'good'))
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
        skip: str = "",  # not None: the command line would parse "#" as null
        sentences: bool = False,
        seed: int = 0,
        cache_dir: str | Path | None = None,
        client_column: str | None = None,
        validation_path: str | Path | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length)
        if not 0 <= test_share < 1:
            raise ValueError(f"test_share must lie in [0, 1), but is {test_share}")
        if test_share and test_path is not None:
            raise ValueError("test data comes from test_path or test_share: set one, not both")
        if sentences and label is not None:
            raise ValueError("single sentences have no labels: set label to null")
        if client_column is not None and label is None:
            raise ValueError("texts of given clients need labels: set label, or no client_column")
        self.path = Path(path).expanduser()
        self.test_path = expand(test_path)
        self.text = text
        self.label = label
        self.classes = classes
        self.limit = check_limit(limit)
        self.test_share = test_share
        self.skip = skip
        self.sentences = sentences
        self.seed = seed
        self.cache_dir = expand(cache_dir)
        self.client_column = client_column
        self.validation_path = expand(validation_path)

    @property
    def data_name(self) -> str:
        """The name of the file."""
        return self.path.absolute().stem

    def train(self) -> Examples:
        """The texts of ``path``, without the test texts."""
        return self._load(self.path, self.label, "train", client=self.client_column)

    def test(self) -> Examples:
        """The texts of ``test_path``, or the held-out share of ``path``."""
        if self.test_path is None and not self.test_share:
            raise DataError(
                "this TextFiles has no test data: set `test_path`, or `test_share` to hold out a "
                "share of `path`"
            )
        if self.test_path is None:
            return self._load_other(self.path, "test")
        return self._load_other(self.test_path)

    def validation(self) -> Examples | None:
        """The texts of ``validation_path``; None without it."""
        return None if self.validation_path is None else self._load_other(self.validation_path)

    def _load_other(self, path: Path, part: str = "all") -> Examples:
        """The texts of another file, or the test texts, with the classes of the training texts."""
        names = () if self.classes or self.class_order else self.train().classes
        return self._load(path, self.label, part, names)

    def auxiliary(self) -> Tensor:
        """The training texts; labels are not read and may be missing."""
        return self._load(self.path, None, "train").inputs

    def _load(
        self,
        path: Path,
        label: str | None,
        part: str,
        names: tuple[str, ...] = (),
        client: str | None = None,
    ) -> Examples:
        if not path.is_file():
            raise DataNotFoundError(
                f"there is no file of texts at {path.absolute()}: correct the path; to run without "
                "files of your own use the embedded texts: `configs/text_quickstart.yaml`"
            )
        texts = (self.text,) if isinstance(self.text, str) else tuple(self.text)
        columns = Columns(texts, label, self.skip, self.sentences, client)
        # the names of the entries are part of the cache key: do not rename them
        key: dict[str, str | int] = {
            "files": fingerprint([path]),
            "columns": repr(columns),
            "part": part,
            "drawn": repr((self.limit, self.test_share, self.seed)),
            **({} if client is None else {"client": client}),
        }
        folder = user_cache() if self.cache_dir is None else self.cache_dir
        return self.load_tokens(
            folder,
            key,
            lambda: self._read(path, columns, part),
            names or self.classes or self.class_order,
        )

    def _read(self, path: Path, columns: Columns, part: str) -> Texts:
        texts, labels, clients = read_texts(path, columns)
        where = torch.arange(len(texts))
        if part != "all" and self.test_share:
            count = round(len(texts) * self.test_share)
            held_out = torch.zeros(len(texts), dtype=torch.bool)
            held_out[sample_positions(len(texts), count, self.seed + _TEST_SEED_OFFSET)] = True
            where = where[held_out if part == "test" else ~held_out]
        if part == "train":
            where = where[sample_positions(len(where), self.limit, self.seed)]
        chosen = where.tolist()
        parts = (texts, labels, clients)
        return Texts(*([values[i] for i in chosen] if values else [] for values in parts))
