"""The command of the front page, from empty folders to its end, with a small host of its data."""

import pytest
from torchvision import datasets

from fedaux_pl.cli import main
from tests.archives import CIFAR, STL, publish_archives, served

SMALL = [
    "--trainer.max_epochs=1",
    "--trainer.accelerator=cpu",
    "--model.clients={resnet8: 4}",
    "--model.model_options={width: 0.125}",
    "--model.pretraining.epochs=1",
    "--model.pretraining.batch_size=20",
]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host of the archives, and an empty working folder."""
    published, empty = tmp_path / "published", tmp_path / "empty"
    published.mkdir()
    empty.mkdir()
    monkeypatch.chdir(empty)
    publish_archives(monkeypatch, published)
    with served(published) as host:
        monkeypatch.setattr(datasets.CIFAR10, "url", f"{host.url}/{CIFAR}")
        monkeypatch.setattr(datasets.STL10, "url", f"{host.url}/{STL}")
        yield host


def test_it_downloads_its_data_and_runs(host, tmp_path, capsys, without_figures):
    assert main(["fit", "--config", "fedaux_resnet8", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert printed.index("This run needs:") < printed.index("after 1 round:")
    for file in (CIFAR, STL):
        assert f"{file} in {tmp_path / 'empty' / 'data'}: downloading" in printed
    assert (tmp_path / "empty/data/stl10_binary/unlabeled_X.bin").is_file()


def test_without_downloads_one_line_says_what_is_missing(host, tmp_path, capsys):
    assert main(["fit", "--config", "fedaux_resnet8", *SMALL, "--data.download=false"]) == 1
    lines = capsys.readouterr().err.splitlines()
    folder = tmp_path / "empty" / "data"
    assert f"error: missing data: {CIFAR} in {folder}; {STL} in {folder}." in lines[-1]
    assert host.requests == []
    assert not folder.exists()
