"""Texts in a user's files."""

from dataclasses import replace
from pathlib import Path

from fedaux_pl.data.cache import fingerprint
from fedaux_pl.data.input_checks import check_test_data, expand
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples
from fedaux_pl.data.texts import (
    TextDraw,
    TextLayout,
    Texts,
    check_text_file,
    has_column,
    read_texts,
)
from fedaux_pl.data.tokenizer import TextSource
from fedaux_pl.errors import DataError


class TextFiles(TextSource):
    r"""Texts in a .csv, .tsv, .jsonl or .txt file, which may be compressed (.xz, .gz, .bz2).

    The first line of a CSV file names its columns. A .txt file has one text per line and no
    labels, and can be auxiliary data only. Labels are class names or integers: without
    ``data.classes`` the distinct labels of the training file are the classes, sorted by value if
    all are integers and alphabetically otherwise; with them, labels are these names or, unless a
    name is such an index itself, their indices from 0. Rows without a text are skipped with a
    warning.

    Args:
        path: The file.
        test_path: The file of the test data, with the same columns.
        validation_path: The file of validation data, with the same columns.
        layout: Which columns and lines of the files are read.
        draw: Which texts are training and test data, if not all of ``path``.
        tokenizer: A folder or a name on the hub, the same as the model's ``source``; null for the
            small English vocabulary of the package.
        max_length: The number of token ids of a text; longer texts are truncated, shorter padded.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedaux_pl.data import TextFiles, TextLayout
        >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
        >>> _ = path.write_text("review,label\na good book,good\na dull film,bad\n")
        >>> train = TextFiles(path, layout=TextLayout(text="review"), max_length=8).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 8]), ('bad', 'good'))
    """

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        validation_path: str | Path | None = None,
        layout: TextLayout = TextLayout(),  # noqa: B008 - frozen
        draw: TextDraw = TextDraw(),  # noqa: B008 - frozen
        tokenizer: str | Path | None = None,
        max_length: int = 128,
    ) -> None:
        super().__init__(tokenizer, max_length)
        check_test_data(draw.test_fraction, "test_path", test_path)
        self.path = Path(path).expanduser()
        self.test_path = expand(test_path)
        self.validation_path = expand(validation_path)
        self.layout = replace(layout, label=None) if layout.sentences else layout
        self.draw = draw

    @property
    def data_name(self) -> str:
        """The name of the file."""
        return self.path.absolute().stem

    def train(self) -> Examples:
        """The texts of ``path``, without the test texts."""
        return self._load(self.path, self.layout, "train")

    def test(self) -> Examples:
        """The texts of ``test_path``, or those held out of ``path``."""
        if self.test_path is not None:
            return self._load_other(self.test_path)
        if not self.draw.test_fraction:
            raise DataError(
                "this TextFiles has no test data: set `test_path`, or `draw.test_fraction` to hold "
                "out a fraction of `path`"
            )
        return self._load_other(self.path, "test")

    def validation(self) -> Examples | None:
        """The texts of ``validation_path``; None without it."""
        return None if self.validation_path is None else self._load_other(self.validation_path)

    def auxiliary(self) -> Inputs:
        """The training texts; labels are not read and may be missing."""
        return self._load(self.path, replace(self.layout, label=None, client=None), "train").inputs

    def _load_other(self, path: Path, part: str = "all") -> Examples:
        """Load another file, or the test texts, with the classes of the training texts."""
        names = () if self.class_order else self.train().classes
        client = self.layout.client
        has_clients = client is not None and has_column(path, client)
        layout = replace(self.layout, client=client if has_clients else None)
        return self._load(path, layout, part, names)

    def _load(
        self, path: Path, layout: TextLayout, part: str, names: tuple[str, ...] = ()
    ) -> Examples:
        check_text_file(path)
        # the entries and their form are part of the cache key: do not rename them
        columns = f"text={layout.columns!r}, label={layout.label!r}, skip={layout.skip!r}"
        key: dict[str, str | int] = {
            "files": fingerprint([path]),
            "columns": f"Columns({columns}, sentences={layout.sentences!r})",
            "part": part,
            "drawn": repr((self.draw.limit, self.draw.test_fraction, self.draw.seed)),
            **({} if layout.client is None else {"client": layout.client}),
        }

        def read() -> Texts:
            found = read_texts(path, layout)
            chosen = self.draw.positions(len(found.texts), part).tolist()
            return Texts(*([values[i] for i in chosen] if values else [] for values in found))

        return self.load_tokens(key, read, names or self.class_order)
