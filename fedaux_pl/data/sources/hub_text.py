"""The text data sets of the paper, loaded with the ``datasets`` library.

Two of the three original repositories no longer work: the Multilingual Amazon Reviews Corpus was
withdrawn in 2023, and BookCorpus was a loading script, which ``datasets`` 4 and later refuses. The
default of ``repo`` is a copy with the same rows.
"""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._text_source import TextSource, check_limit, sample_positions
from fedaux_pl.data.text_reader import Texts
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError, first_line
from fedaux_pl.files import user_cache


class _HubText(TextSource):
    """A data set of the Hugging Face hub with a column ``text`` and, if labeled, ``label``."""

    classes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        repo: str,
        tokenizer: str | Path,
        max_length: int,
        limit: int | None,
        seed: int,
        cache_dir: str | Path,
        config: str | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length)
        self.repo = repo
        self.config = config
        self.limit = check_limit(limit)
        self.seed = seed
        self.cache_dir = Path(cache_dir).expanduser()

    def train(self) -> Examples:
        """The training texts."""
        return self._load("train", labeled=bool(self.classes))

    def test(self) -> Examples:
        """The test texts."""
        return self._load("test", labeled=True) if self.classes else super().test()

    def auxiliary(self) -> Tensor:
        """The training texts; labels are not read."""
        return self._load("train", labeled=False).inputs

    def _load(self, split: str, labeled: bool) -> Examples:
        dataset = self._open(split)
        limit = self.limit if split == "train" else None
        # the names of the entries are part of the cache key: do not rename them
        key: dict[str, str | int] = {
            "data": f"{self.repo}\0{self.config}\0{split}\0{dataset._fingerprint}",
            "drawn": repr((limit, self.seed)),
            "labelled": int(labeled),
            "downloads": str(self.cache_dir.absolute()),
        }

        def read() -> Texts:
            chosen = dataset.select(sample_positions(len(dataset), limit, self.seed).tolist())
            rows = [(str(row["text"]).strip(), str(row.get("label"))) for row in chosen]
            rows = [row for row in rows if row[0]]  # without empty texts
            labels = [label for _, label in rows] if labeled else []
            return Texts([text for text, _ in rows], labels, [])

        classes = self.classes if labeled else ()
        return self.load_tokens(user_cache(), key, read, classes)

    def _open(self, split: str) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise ConfigurationError(
                f"{type(self).__name__} needs the datasets library, which is not installed: run "
                "pip install 'fedaux-pl[text]', or use TextFiles for files of your own"
            ) from error
        try:
            folder = str(self.cache_dir)
            dataset = datasets.load_dataset(self.repo, self.config, split=split, cache_dir=folder)
        # a missing repository, a script or no network can raise nearly any exception
        except Exception as error:
            raise DataNotFoundError(
                f"{self.repo} cannot be loaded from the hub ({first_line(error)}): set `repo` to a "
                f"copy of {type(self).__name__}, or use TextFiles for files of your own"
            ) from error
        needed = ["text", "label"] if self.classes else ["text"]
        if missing := [name for name in needed if name not in dataset.column_names]:
            raise DataError(
                f"{self.repo} has no column {', '.join(missing)}; its columns are "
                f"{', '.join(dataset.column_names)}: set `repo` to another copy"
            )
        return dataset


class AGNews(_HubText):
    """AG News (Zhang et al. 2015): 120,000 training and 7,600 test articles, four topics.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: The number of token ids of an article.
        repo: The data set on the hub.
        limit: The number of training articles, drawn at random; null for all.
        seed: The seed of the draw.
        cache_dir: The folder of downloads; token ids are in the user's cache folder.
    """

    classes = ("World", "Sports", "Business", "Sci/Tech")

    def __init__(
        self,
        tokenizer: str | Path = "huawei-noah/TinyBERT_General_4L_312D",
        max_length: int = 128,
        repo: str = "fancyzhx/ag_news",
        limit: int | None = None,
        seed: int = 0,
        cache_dir: str | Path = "data",
    ) -> None:
        super().__init__(repo, tokenizer, max_length, limit, seed, cache_dir)


class AmazonReviews(_HubText):
    """The English part of the Multilingual Amazon Reviews Corpus (Keung et al. 2020).

    200,000 training and 5,000 test reviews with one to five stars, 20 % each. Its license allows
    research only, no commercial use.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: The number of token ids of a review.
        repo: The data set on the hub; SetFit/amazon_reviews_multi_en is another copy.
        limit: The number of training reviews, drawn at random; null for all.
        seed: The seed of the draw.
        cache_dir: The folder of downloads; token ids are in the user's cache folder.
    """

    classes = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")

    def __init__(
        self,
        tokenizer: str | Path = "huawei-noah/TinyBERT_General_4L_312D",
        max_length: int = 128,
        repo: str = "mteb/AmazonReviewsClassification",
        limit: int | None = None,
        seed: int = 0,
        cache_dir: str | Path = "data",
    ) -> None:
        language = "en" if repo.startswith("mteb/") else None  # other copies have one language
        super().__init__(repo, tokenizer, max_length, limit, seed, cache_dir, language)


class BookCorpus(_HubText):
    """Sentences of BookCorpus (Zhu et al. 2015), unlabeled: for auxiliary data.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: The number of token ids of a sentence.
        repo: The data set on the hub.
        limit: The number of the 74 million sentences, drawn at random. The paper has 160,000 in
            D^- and as many in D_distill.
        seed: The seed of the draw.
        cache_dir: The folder of downloads (gigabytes); token ids are in the user's cache
            folder.
    """

    def __init__(
        self,
        tokenizer: str | Path = "huawei-noah/TinyBERT_General_4L_312D",
        max_length: int = 128,
        repo: str = "rojagtap/bookcorpus",
        limit: int | None = 320_000,
        seed: int = 0,
        cache_dir: str | Path = "data",
    ) -> None:
        super().__init__(repo, tokenizer, max_length, limit, seed, cache_dir)
