"""A whole run whose clients and classes have names that are meant to be interpreted."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from markdown import markdown
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.callbacks import FederationReport
from fedaux_pl.cli.compare import compare
from fedaux_pl.cli.entry import main
from fedaux_pl.cli.export import model_card
from fedaux_pl.data import Examples, input_checks
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sites.server_log import log_line
from fedaux_pl.sites.site_status import describe_status
from tests.federations import FewDigits, create, fit, split

FORGED = "- private: everything that north sends"
CLIENTS = (
    f"north\n\n## Privacy\n\n{FORGED}",
    "<img src=x onerror=alert(1)>\x1b[31m\u202e",
    "[click](javascript:alert(1)) | `x` |",
)
CLASSES = ("\x1b]0;title\x07\nnote: nothing is missing", "<b>two</b>", *"23456789")


class Hostile(FewDigits):
    """Three clients and ten classes, some of which nobody holds."""

    data_name = "photos\n# Title <script>alert(1)</script>"

    def train(self):
        examples = super().train()
        kept = examples.targets != 0
        few = Examples(examples.inputs[kept], examples.targets[kept], CLASSES)
        owners = torch.arange(len(few)) % 3
        return replace(few, clients=owners, client_names=CLIENTS)

    def test(self):
        examples = replace(super().test(), classes=CLASSES)
        owners = torch.arange(len(examples)) % 3
        return replace(examples, clients=owners, client_names=CLIENTS)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A finished run: what it printed, its folder and its checkpoint."""
    root = tmp_path_factory.mktemp("hostile")
    logger = TensorBoardLogger(root, name="runs")
    saved = ModelCheckpoint(root / "checkpoints", "last")
    callbacks = [FederationReport(), saved]
    options = {"logger": logger, "callbacks": callbacks, "enable_checkpointing": True}
    federation = create(FedAvg())
    trainer = fit(root, federation, 1, split(3, private=Hostile()), **options)
    trainer.test(federation, datamodule=trainer.datamodule, verbose=False)
    logger.experiment.flush()
    return root / "runs" / "version_0", load_checkpoint(root / "checkpoints" / "last.ckpt")[
        "federation"
    ]


def elements(text):
    page = markdown(text, extensions=["tables", "fenced_code"])
    return set(re.findall(r"</?([a-z][a-z0-9]*)", page)), page


def test_the_console_shows_one_line_for_each_line_of_a_run(tmp_path, capsys):
    fit(tmp_path, create(FedAvg()), 1, split(3, private=Hostile()))
    lines = capsys.readouterr().out.splitlines()
    assert any("no client of the round holds class" in line for line in lines)
    assert any("by client: mean" in line for line in lines)
    assert all(map(str.isprintable, lines))
    assert FORGED not in lines
    assert not any(line.startswith("note: nothing is missing") for line in lines)


def test_pages_of_tensorboard(hostile):
    folder, _ = hostile
    pages = EventAccumulator(str(folder))
    pages.Reload()
    texts = [tag for tag in pages.Tags()["tensors"] if tag.endswith("text_summary")]
    assert {"about this run/text_summary", "privacy/text_summary", "clients/text_summary"} <= {
        *texts
    }
    for tag in texts:
        text = pages.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        found, page = elements(text)
        assert not found & {"img", "a", "script", "b", "h1", "h2"}, tag
        assert "href" not in page
        assert all(map(str.isprintable, text.splitlines()))


def test_tables_and_figures(hostile):
    folder, _ = hostile
    for name in ("curve.csv", "clients.csv"):
        lines = (folder / name).read_bytes().decode().splitlines()
        assert all(map(str.isprintable, lines))
    assert len((folder / "clients.csv").read_text().splitlines()) == 6
    names = [path.name for path in (folder / "figures").iterdir()]
    assert len([name for name in names if name.startswith("evaluation_confusion_")]) == 3
    assert all(re.fullmatch(r"[\w.+-]+", name) for name in names)
    assert json.loads((folder / "summary.json").read_text())["data"].startswith("photos")


@pytest.mark.parametrize("client", [None, *CLIENTS], ids=["server", *"012"])
def test_a_card_has_its_own_sections_only(hostile, client):
    _, federation = hostile
    owner = client and SimpleNamespace(
        name=client, statistics="running", reasons=["a reason"], architecture="resnet8"
    )
    card = model_card(federation, [], "last.ckpt", owner)
    headings = [line for line in card.splitlines() if line.startswith("#")]
    assert len(headings) == 3
    assert headings[0].startswith("# FedAvg on photos")
    assert headings[1:] == ["## Privacy", "## Load"]
    assert FORGED not in card.splitlines()
    assert all(map(str.isprintable, card.splitlines()))
    found, page = elements(card.split("---\n", 2)[2])
    assert not found & {"img", "a", "script", "b"}
    assert "href" not in page
    privacy = card[card.index("## Privacy") : card.index("## Load")].strip().splitlines()[2:]
    assert len(privacy) == len(federation["privacy"]) + (client is not None)


def test_errors_and_notes(capsys, monkeypatch):
    def fail(_):
        raise ConfigurationError(f"client: got {CLIENTS[1]}")

    monkeypatch.setattr("fedaux_pl.cli.entry.run_verb", fail)
    assert main(["fit"]) == 1
    input_checks.note.__wrapped__(f"of {CLIENTS[0]}")
    log_line(f"{CLIENTS[1]} connected")
    printed, message = capsys.readouterr()
    for line in [*printed.splitlines(), *message.splitlines()]:
        assert line.isprintable()
        assert line.startswith(("fedaux-pl fit: error", "note: of north", "sites: <img"))


def test_the_status_of_sites(tmp_path):
    site = {"connected": True, "since": 0, "last_round": 1, "last_code": "\x1b[2J"}
    content = {"pid": 1, "updated": 0, "sites": dict.fromkeys(CLIENTS, site)}
    (tmp_path / "sites.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError) as caught:  # no server of ours accepts such names
        describe_status(tmp_path)
    assert str(caught.value).isprintable()


def test_the_table_of_compare(hostile, tmp_path, capsys):
    folder, _ = hostile
    compare([str(folder), "--output", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(map(str.isprintable, lines))
