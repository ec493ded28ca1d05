"""The texts of the paper, through the ``datasets`` library.

Two of the three places that the paper names are gone: the Multilingual Amazon Reviews Corpus was
withdrawn by its provider in 2023, and BookCorpus was there as a script, which ``datasets`` no
longer runs from its version 4 on. The default of ``repo`` is a copy with the same rows.
"""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fedaux_pl.data.cache import FOLDER
from fedaux_pl.data.source import Examples
from fedaux_pl.data.sources._text import TextSource, check_limit, draw
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError


class HubText(TextSource):
    """A data set of the hub with a column ``text`` and, where it has labels, a column ``label``."""

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
        """The training part."""
        return self._load("train", labelled=bool(self.classes))

    def auxiliary(self) -> Tensor:
        """The training texts; labels are not read."""
        return self._load("train", labelled=False).inputs

    def _load(self, split: str, labelled: bool) -> Examples:
        dataset = self._open(split)
        limit = self.limit if split == "train" else None
        key: dict[str, str | int] = {
            "data": f"{self.repo}\0{self.config}\0{split}\0{dataset._fingerprint}",
            "drawn": repr((limit, self.seed)),
            "labelled": int(labelled),
        }

        def read() -> tuple[list[str], list[str]]:
            chosen = dataset.select(draw(len(dataset), limit, self.seed).tolist())
            rows = [(str(row["text"]).strip(), row.get("label")) for row in chosen]
            rows = [(text, label) for text, label in rows if text]
            texts = [text for text, _ in rows]
            return texts, [str(label) for _, label in rows] if labelled else []

        return self.kept(self.cache_dir / FOLDER, key, read, self.classes if labelled else ())

    def _open(self, split: str) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise ConfigurationError(
                f"{type(self).__name__} is read through the datasets library, which is not "
                "installed: pip install 'fedaux-pl[text]', or use TextFiles for files of your own"
            ) from error
        try:
            dataset = datasets.load_dataset(
                self.repo, self.config, split=split, cache_dir=str(self.cache_dir)
            )
        # a repository that is gone, offline or a script can surface as nearly any exception
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DataNotFoundError(
                f"{self.repo} cannot be loaded from the hub ({reason}): set `repo` to a copy of "
                f"{type(self).__name__}, or use TextFiles for files of your own"
            ) from error
        needed = ["text", "label"] if self.classes else ["text"]
        if lacking := [name for name in needed if name not in dataset.column_names]:
            raise DataError(
                f"{self.repo} has no column {', '.join(lacking)}, but: "
                f"{', '.join(dataset.column_names)}"
            )
        return dataset


class AGNews(HubText):
    """AG News (Zhang et al. 2015): 120,000 training and 7,600 test articles, four topics.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: How many tokens of an article are kept.
        repo: The data set on the hub.
        limit: How many training articles are drawn at random; null for all.
        seed: Of what is drawn.
        cache_dir: Where downloads and token ids are kept.
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

    def test(self) -> Examples:
        """The test part."""
        return self._load("test", labelled=True)


class AmazonReviews(HubText):
    """The English part of the Multilingual Amazon Reviews Corpus (Keung et al. 2020).

    200,000 training and 5,000 test reviews with one to five stars, 20 % each. The terms under
    which it was given out allow research, not commerce.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: How many tokens of a review are kept.
        repo: The data set on the hub; SetFit/amazon_reviews_multi_en is another copy, which wants
            no name of a language.
        limit: How many training reviews are drawn at random; null for all.
        seed: Of what is drawn.
        cache_dir: Where downloads and token ids are kept.
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
        language = "en" if repo.startswith("mteb/") else None
        super().__init__(repo, tokenizer, max_length, limit, seed, cache_dir, language)

    def test(self) -> Examples:
        """The test part."""
        return self._load("test", labelled=True)


class BookCorpus(HubText):
    """Sentences of BookCorpus (Zhu et al. 2015), unlabeled: auxiliary data.

    Args:
        tokenizer: A folder or a name on the hub, the same as the model's ``source``.
        max_length: How many tokens of a sentence are kept.
        repo: The data set on the hub.
        limit: How many of the 74 million sentences are drawn at random. The paper has 160,000 in
            D^- and as many in D_distill.
        seed: Of what is drawn.
        cache_dir: Where downloads (gigabytes) and token ids are kept.
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
