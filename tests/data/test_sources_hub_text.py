"""The texts of the paper through `datasets`, which is optional and here an imitation."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedaux_pl.data import AGNews, AmazonReviews, BookCorpus
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from tests.texts import VOCABULARY


class Rows:
    """What is used of a `datasets.Dataset`."""

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
    """An imitation of the library that answers with these rows and notes what it was asked."""
    state = SimpleNamespace(rows=[], asked=[])

    def load_dataset(repo, config, split, cache_dir):
        state.asked.append((repo, config, split))
        if isinstance(state.rows, Exception):
            raise state.rows
        return Rows(state.rows)

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return state


def test_news_and_reviews(hub, tmp_path):
    hub.rows = [{"text": f"news {i}", "label": i % 4} for i in range(9)] + [
        {"text": " ", "label": 0}
    ]
    news = AGNews(VOCABULARY, 8, cache_dir=tmp_path)
    assert news.train().targets.tolist() == [i % 4 for i in range(9)]
    assert news.test().classes == ("World", "Sports", "Business", "Sci/Tech")
    assert news.auxiliary().shape == (9, 8)
    assert set(hub.asked) == {
        ("fancyzhx/ag_news", None, "train"),
        ("fancyzhx/ag_news", None, "test"),
    }
    hub.asked.clear()
    reviews = AmazonReviews(VOCABULARY, 8, limit=5, cache_dir=tmp_path)
    assert 4 <= len(reviews.train()) <= 5
    assert len(reviews.train().classes) == 5
    assert len(reviews.test()) == 9  # all of them
    assert hub.asked[0] == ("mteb/AmazonReviewsClassification", "en", "train")
    AmazonReviews(VOCABULARY, 8, repo="SetFit/amazon_reviews_multi_en", cache_dir=tmp_path).test()
    assert hub.asked[-1] == ("SetFit/amazon_reviews_multi_en", None, "test")


def test_sentences_of_books(hub, tmp_path):
    hub.rows = [{"text": f"sentence {i}"} for i in range(20)]
    books = BookCorpus(VOCABULARY, 8, limit=6, cache_dir=tmp_path)
    assert books.auxiliary().shape == (6, 8)
    assert books.train().labels is None
    assert BookCorpus().limit == 320_000
    with pytest.raises(DataError, match="has no test data"):
        books.test()


def test_what_can_go_wrong(hub, tmp_path, monkeypatch):
    hub.rows = RuntimeError("Dataset scripts are no longer supported, but found x.py")
    with pytest.raises(DataNotFoundError, match=r"x/y cannot be loaded .*scripts.*set `repo`"):
        BookCorpus(VOCABULARY, repo="x/y", cache_dir=tmp_path).auxiliary()
    hub.rows = [{"body": "a"}]
    with pytest.raises(DataError, match="has no column text, label, but: body"):
        AGNews(VOCABULARY, cache_dir=tmp_path).train()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fedaux-pl\[text\]'"):
        AGNews(VOCABULARY, cache_dir=tmp_path).train()
