"""The text data sets of the paper, read with the library `datasets` from local parquet files."""

import json
import shutil
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

pytest.importorskip("datasets")

import datasets
import huggingface_hub
import pyarrow as pa
from pyarrow import parquet

from fedaux_pl.data import AGNews, AmazonReviews, BookCorpus, FederatedDataModule
from fedaux_pl.errors import ConfigurationError, DataError, DataNotFoundError
from tests.texts import VOCABULARY

NEWS = [{"text": f"news {i}", "label": i % 4} for i in range(9)] + [{"text": " ", "label": 0}]


@pytest.fixture(autouse=True)
def endpoint(monkeypatch):
    """Nothing but loopback is asked for, and refuses."""
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", endpoint)
        yield endpoint


@pytest.fixture
def publish(tmp_path):
    """Writes rows as the parquet files of a data set, and returns its folder."""

    def write(rows, parts=("train", "test"), name="copy"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for part in parts:
            parquet.write_table(pa.Table.from_pylist(rows), folder / f"{part}-0.parquet")
        return folder

    return write


def put_into_cache(folder, cache, name, config="default"):
    """Put a data set into a cache folder, as the library does after a download."""
    scratch = cache.with_name("scratch")
    datasets.load_dataset(str(folder), cache_dir=str(scratch))
    shutil.copytree(scratch / folder.name / "default", cache / name / config)
    for path in (cache / name / config).rglob("dataset_info.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "config_name": config}))


def test_ag_news_and_amazon_reviews(publish, tmp_path):
    repo, cache = str(publish(NEWS)), tmp_path / "cache"
    news = AGNews(VOCABULARY, 8, repo=repo, cache_dir=cache)
    assert news.train().targets.tolist() == [i % 4 for i in range(9)]
    assert news.test().classes == ("World", "Sports", "Business", "Sci/Tech")
    assert news.auxiliary().shape == (9, 8)
    assert not list(cache.glob("*.pt"))  # token ids are in the user's cache folder
    reviews = AmazonReviews(VOCABULARY, 8, repo=repo, limit=5, cache_dir=cache)
    assert 4 <= len(reviews.train()) <= 5
    assert len(reviews.train().classes) == 5
    assert len(reviews.test()) == 9  # all of them


def test_bookcorpus(publish, tmp_path):
    repo = str(publish([{"text": f"sentence {i}"} for i in range(20)], ["train"]))
    books = BookCorpus(VOCABULARY, 8, repo=repo, limit=6, cache_dir=tmp_path)
    assert books.auxiliary().shape == (6, 8)
    assert books.train().labels is None
    assert BookCorpus().draw.limit == 320_000
    with pytest.raises(DataError, match="has no test data"):
        books.test()


def test_what_has_been_downloaded_needs_no_network(publish, tmp_path, capsys):
    cache = tmp_path / "cache"
    put_into_cache(publish(NEWS, name="ag_news"), cache, "fancyzhx___ag_news")
    name = "mteb___amazon_reviews_classification"
    reviews = [{"text": f"review {i}", "label": i % 5} for i in range(9)]
    folder = publish(reviews, name="amazon_reviews_classification")
    put_into_cache(folder, cache, name, "en")
    for download in (True, False):
        news = AGNews(VOCABULARY, 8, cache_dir=cache)
        reviews = AmazonReviews(VOCABULARY, 8, cache_dir=cache)
        data = FederatedDataModule(news, reviews, 2, 100, download=download)
        data.setup()
        assert sum(data.client_sizes) == 9
        assert len(data.auxiliary_inputs) == 9
    assert "needs" not in capsys.readouterr().out


def test_false_asks_for_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        pytest.fail("asks the hub")

    monkeypatch.setattr(huggingface_hub.HfApi, "hf_hub_download", fail)
    cache = tmp_path / "cache"
    sources = AGNews(VOCABULARY, 8, cache_dir=cache), BookCorpus(VOCABULARY, 8, cache_dir=cache)
    with pytest.raises(DataNotFoundError) as caught:
        FederatedDataModule(*sources, download=False).setup()
    message = str(caught.value)
    assert f"fancyzhx___ag_news in {cache}; rojagtap___bookcorpus in {cache}" in message
    assert "data.download: true" in message
    assert "\n" not in message
    assert not cache.exists()


def test_without_a_network(endpoint, tmp_path):
    cache = tmp_path / "cache"
    with pytest.raises(DataNotFoundError) as caught:
        FederatedDataModule(AGNews(VOCABULARY, 8, cache_dir=cache)).setup()
    message = str(caught.value)
    url = f"{endpoint}/datasets/fancyzhx/ag_news"
    assert f"{url} cannot be reached" in message
    assert f"fancyzhx___ag_news ({url}) to {cache}" in message
    assert "\n" not in message
    assert not cache.exists()


def test_a_download_is_listed_with_its_size(publish, tmp_path, monkeypatch, capsys):
    cache, folder, load = tmp_path / "cache", publish(NEWS, name="ag_news"), datasets.load_dataset
    host = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers with errors alone
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{host.server_port}")
    thread = Thread(target=host.handle_request)
    thread.start()

    def load_from_hub(repo, config, **options):
        if not datasets.config.HF_HUB_OFFLINE:
            monkeypatch.setattr(datasets, "load_dataset", load)
            put_into_cache(folder, cache, "fancyzhx___ag_news")
            return None
        return load(repo, config, **options)

    builder = SimpleNamespace(info=SimpleNamespace(download_size=19_800_000))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: builder)
    monkeypatch.setattr(datasets, "load_dataset", load_from_hub)
    data = FederatedDataModule(AGNews(VOCABULARY, 8, cache_dir=cache), num_clients=2, alpha=100)
    data.setup()
    thread.join()
    host.server_close()
    assert sum(data.client_sizes) == 9
    assert f"AGNews, fancyzhx___ag_news in {cache}: downloading 20 MB" in capsys.readouterr().out


def test_hub_errors(publish, tmp_path, monkeypatch):
    script = tmp_path / "y"
    script.mkdir()
    (script / "y.py").touch()
    with pytest.raises(DataNotFoundError, match=r"y cannot be loaded .*scripts.*set `repo`"):
        BookCorpus(VOCABULARY, repo=str(script), cache_dir=tmp_path).auxiliary()
    with pytest.raises(DataError, match="has no column text; its columns are body"):
        AGNews(VOCABULARY, repo=str(publish([{"body": "a"}])), cache_dir=tmp_path).train()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install -e '.\[text\]'"):
        AGNews(VOCABULARY, cache_dir=tmp_path).train()
