"""The text data sets of the paper, with a mock of the optional library `datasets`."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedaux_pl.data import AGNews, AmazonReviews, BookCorpus
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from tests.texts import VOCABULARY


class Rows:
    """A mock of `datasets.Dataset`."""

    _fingerprint = "0123"

    def __init__(self, rows):
        self.rows = rows
        self.column_names = list(rows[0])

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def select(self, where):
        return Rows([self.rows[i] for i in where])


@pytest.fixture
def hub(monkeypatch):
    """A mock of the library that returns `rows` and records `calls`."""
    state = SimpleNamespace(rows=[], calls=[])

    def load_dataset(repo, config, split, cache_dir):
        state.calls.append((repo, config, split))
        if isinstance(state.rows, Exception):
            raise state.rows
        return Rows(state.rows)

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return state


def test_ag_news_and_amazon_reviews(hub, tmp_path):
    hub.rows = [{"text": f"news {i}", "label": i % 4} for i in range(9)] + [
        {"text": " ", "label": 0}
    ]
    news = AGNews(VOCABULARY, 8, cache_dir=tmp_path)
    assert news.train().targets.tolist() == [i % 4 for i in range(9)]
    assert news.test().classes == ("World", "Sports", "Business", "Sci/Tech")
    assert news.auxiliary().shape == (9, 8)
    assert list(tmp_path.iterdir()) == []  # token ids are in the user's cache folder
    assert set(hub.calls) == {
        ("fancyzhx/ag_news", None, "train"),
        ("fancyzhx/ag_news", None, "test"),
    }
    hub.calls.clear()
    reviews = AmazonReviews(VOCABULARY, 8, limit=5, cache_dir=tmp_path)
    assert 4 <= len(reviews.train()) <= 5
    assert len(reviews.train().classes) == 5
    assert len(reviews.test()) == 9  # all of them
    assert hub.calls[0] == ("mteb/AmazonReviewsClassification", "en", "train")
    AmazonReviews(VOCABULARY, 8, repo="SetFit/amazon_reviews_multi_en", cache_dir=tmp_path).test()
    assert hub.calls[-1] == ("SetFit/amazon_reviews_multi_en", None, "test")


def test_bookcorpus(hub, tmp_path):
    hub.rows = [{"text": f"sentence {i}"} for i in range(20)]
    books = BookCorpus(VOCABULARY, 8, limit=6, cache_dir=tmp_path)
    assert books.auxiliary().shape == (6, 8)
    assert books.train().labels is None
    assert BookCorpus().draw.limit == 320_000
    with pytest.raises(DataError, match="has no test data"):
        books.test()


def test_hub_errors(hub, tmp_path, monkeypatch):
    hub.rows = RuntimeError("Dataset scripts are no longer supported, but found x.py")
    with pytest.raises(DataNotFoundError, match=r"x/y cannot be loaded .*scripts.*set `repo`"):
        BookCorpus(VOCABULARY, repo="x/y", cache_dir=tmp_path).auxiliary()
    hub.rows = [{"body": "a"}]
    with pytest.raises(DataError, match="has no column text, label; its columns are body"):
        AGNews(VOCABULARY, cache_dir=tmp_path).train()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fedaux-pl\[text\]'"):
        AGNews(VOCABULARY, cache_dir=tmp_path).train()
