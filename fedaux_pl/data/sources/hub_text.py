"""The text data sets of the paper, loaded with the ``datasets`` library.

The Multilingual Amazon Reviews Corpus was withdrawn in 2023, and BookCorpus was a loading script,
which ``datasets`` refuses: the default of ``repo`` is a copy with the same rows.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import urlopen

from fedaux_pl.data.cache import CacheKey
from fedaux_pl.data.downloads import PATIENCE, Download, fetch_missing
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources.text_files import TextDraw
from fedaux_pl.data.tokenizer import Texts, TextSource
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError, first_line

_TINY_BERT = "huawei-noah/TinyBERT_General_4L_312D"


class _HubText(TextSource):
    """A data set of the Hugging Face hub with a column ``text`` and, if labeled, ``label``.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: The number of token ids of a text; longer texts are truncated, shorter padded.
        repo: The data set on the hub; null for the usual copy.
        limit: The number of training texts, drawn at random; null for all.
        seed: The seed of the draw.
        cache_dir: The folder of downloads; token ids are in the user's cache folder.
    """

    has_validation = False
    classes: ClassVar[tuple[str, ...]] = ()
    usual_repo: ClassVar[str]
    usual_config: ClassVar[str | None] = None  # other copies have one configuration
    download = True

    def __init__(
        self,
        tokenizer: str | Path = _TINY_BERT,
        max_length: int = 128,
        repo: str | None = None,
        limit: int | None = None,
        seed: int = 0,
        cache_dir: str | Path = "data",
    ) -> None:
        super().__init__(tokenizer, max_length)
        self.repo = repo or self.usual_repo
        self.config = self.usual_config if self.repo == self.usual_repo else None
        self.limit = limit
        self.draw = TextDraw(limit, seed=seed)
        self.cache_dir = Path(cache_dir).expanduser()

    def load(self, part: str) -> Examples | None:
        """Load a part; there is no test data without labels."""
        if part == "test" and not self.classes:
            return None
        return self._read(part, labeled=bool(self.classes))

    def auxiliary(self) -> Inputs:
        """The training texts; labels are not read."""
        return self._read("train", labeled=False).inputs

    def _read(self, split: str, labeled: bool) -> Examples:
        dataset = self._open(split)
        limit = self.draw.limit if split == "train" else None
        # the names of the entries are part of the cache key: do not rename them
        key: CacheKey = {
            "data": f"{self.repo}\0{self.config}\0{split}\0{dataset._fingerprint}",
            "drawn": repr((limit, self.draw.seed)),
            "labelled": int(labeled),
            "downloads": str(self.cache_dir.absolute()),
        }

        def read() -> Texts:
            chosen = dataset.select(self.draw.positions(len(dataset), split).tolist())
            rows = Texts([], [], [])
            for row in chosen:
                text = str(row["text"]).strip()
                if text:
                    rows.texts.append(text)
                    if labeled:
                        rows.labels.append(str(row["label"]))
            return rows

        return self.load_tokens(key, read, self.classes if labeled else ())

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the data set, one download for all parts; none for a local folder."""
        return [] if Path(self.repo).is_dir() else [HubDataset(self)]

    def _open(self, split: str) -> Any:
        """Open a part that is there, or download it."""
        fetch_missing(self.downloads([split]))
        dataset = self.find(split)
        if dataset is None:  # raises why
            dataset = self.call_library("load_dataset", split=split)
        for name in ("text", "label") if self.classes else ("text",):
            if name not in dataset.column_names:
                raise DataError(
                    f"{self.repo} has no column {name}; its columns are "
                    f"{', '.join(dataset.column_names)}: set `repo` to another copy"
                )
        return dataset

    def find(self, split: str) -> Any:
        """Return a part that has been downloaded, without the network; None if there is none."""
        library = self.import_library()
        settings = library.config
        is_offline = settings.HF_HUB_OFFLINE
        settings.HF_HUB_OFFLINE = True
        logs = library.utils.logging
        verbosity = logs.get_verbosity()
        logs.set_verbosity_error()  # it warns that it takes what has been downloaded
        try:
            return self.call_library("load_dataset", split=split)
        except DataNotFoundError:
            return None
        finally:
            settings.HF_HUB_OFFLINE = is_offline
            logs.set_verbosity(verbosity)

    def call_library(self, function: str, **options: Any) -> Any:
        """Call a function of the library; raise a DataNotFoundError if that fails."""
        call = getattr(self.import_library(), function)
        try:
            return call(self.repo, self.config, cache_dir=str(self.cache_dir), **options)
        # a missing repository, a script or no network can raise nearly any exception
        except Exception as error:
            raise DataNotFoundError(
                f"{self.repo} cannot be loaded from the hub ({first_line(error)}): set `repo` to a "
                "copy, or use TextFiles for files of your own"
            ) from error

    def import_library(self) -> Any:
        """Import ``datasets``, or raise a ConfigurationError."""
        try:
            import datasets
        except ImportError as error:
            raise ConfigurationError(
                f"{type(self).__name__} needs the datasets library, which is not installed: run "
                "pip install -e '.[text]' in the clone of fedaux-pl, or use TextFiles for files of "
                "your own"
            ) from error
        return datasets


class HubDataset(Download):
    """A data set of the hub, in the cache folder of the ``datasets`` library."""

    def __init__(self, source: _HubText) -> None:
        library = source.import_library()
        names = source.repo.split("/")
        names[-1] = library.naming.camelcase_to_snakecase(names[-1])
        super().__init__(
            type(source).__name__,
            file="___".join(names),
            folder=source.cache_dir,
            url=f"{library.config.HF_ENDPOINT}/datasets/{source.repo}",
            size=0,
            allowed=bool(source.download),
        )
        self._source = source

    def is_there(self) -> bool:
        """Return whether the library finds the training texts without the network."""
        return self._source.find("train") is not None

    def connect(self) -> None:
        """Read the size of the data set from the hub, if the hub answers."""
        with suppress(HTTPError):  # an answer, perhaps to users without the token of the library
            urlopen(self.url, timeout=PATIENCE).close()  # noqa: S310
        builder = self._source.call_library("load_dataset_builder")
        self.size = builder.info.download_size or 0

    def fetch(self) -> None:
        """Download all parts; the library has bars of its own."""
        self._source.call_library("load_dataset")


class AGNews(_HubText):
    """AG News (Zhang et al. 2015): 120,000 training and 7,600 test articles, four topics."""

    classes = ("World", "Sports", "Business", "Sci/Tech")
    usual_repo = "fancyzhx/ag_news"


class AmazonReviews(_HubText):
    """The English part of the Multilingual Amazon Reviews Corpus (Keung et al. 2020).

    200,000 training and 5,000 test reviews with one to five stars, 20 % each. Its license allows
    research only, no commercial use. SetFit/amazon_reviews_multi_en is another copy.
    """

    classes = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
    usual_repo = "mteb/AmazonReviewsClassification"
    usual_config = "en"


class BookCorpus(_HubText):
    """Sentences of BookCorpus (Zhu et al. 2015), unlabeled: for auxiliary data (gigabytes).

    Args:
        limit: The number of the 74 million sentences, drawn at random. The paper has 160,000 in
            D^- and as many in D_distill.
    """

    usual_repo = "rojagtap/bookcorpus"

    def __init__(
        self,
        tokenizer: str | Path = _TINY_BERT,
        max_length: int = 128,
        repo: str | None = None,
        limit: int | None = 320_000,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, max_length, repo, limit, **options)
