"""The files and pages that a run leaves behind."""

import contextlib
import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

from fedaux_pl.algorithms import Centralized, FedAUX, FedAvg, FedDF
from fedaux_pl.callbacks import report as report_module
from fedaux_pl.callbacks import run_figures
from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.callbacks.notes import RunNotes
from fedaux_pl.callbacks.report import FederationReport, write_curve, write_summary
from fedaux_pl.scoring import UPDATES_IN_THE_CLEAR, MeanScoring, Privacy
from tests.federations import FewDigits, create, fit, split
from tests.paper import paper_fedaux


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def read_json(path):
    return json.loads(path.read_text(), parse_constant=refuse)


def reported(root, federation, rounds=3, report=None, name="runs", **options):
    """Runs with a report and gives the folder of what it wrote."""
    logger = TensorBoardLogger(root, name=name)
    report = report or FederationReport()
    fit(root, federation, rounds, logger=logger, callbacks=[report], **options)
    logger.experiment.flush()
    return root / name / "version_0"


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def text_of(pages, name):
    return pages.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()


@pytest.fixture(autouse=True, scope="module")
def _small_pictures():
    """Figures are created, but not drawn, which takes most of the time; tests of figures do."""
    with mock.patch.object(report_module, "rasterize", return_value=Image.new("RGB", (2, 2))):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """For two methods a finished run: its federation, folder, pages and printed text."""
    runs = {}
    for algorithm, rounds in ((paper_fedaux(), 3), (FedAvg(), 1)):
        root, federation = tmp_path_factory.mktemp("finished"), create(algorithm)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            folder = reported(root, federation, rounds)
        runs[algorithm.name] = (federation, folder, events(folder), printed.getvalue())
    return runs


def test_curve_summary_and_tensorboard(finished):
    federation, folder, pages, printed = finished["FedAUX"]
    with (folder / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row, entry in zip(rows, federation.history, strict=True):
        assert {key: float(value) for key, value in row.items()} == entry

    summary = read_json(folder / "summary.json")
    accuracies = [entry["accuracy"] for entry in federation.history]
    assert summary["method"] == "FedAUX"
    assert summary["rounds"] == 3
    assert summary["accuracy"] == accuracies[-1]
    assert summary["best_accuracy"] == max(accuracies)
    assert summary["bytes_up"] == federation.history[-1]["bytes/up_total"]
    assert summary["bytes_down"] == federation.history[-1]["bytes/down_total"]
    assert summary["privacy"] == federation.privacy()
    assert summary["settings"] == federation.settings()
    assert not list(folder.glob("*.part"))

    images = set(pages.Tags()["images"])
    assert images == {
        "data/split",
        "certainty/clients",
        "certainty/weight_by_class",
        "certainty/top_images",
        "clients/participation",
        "pretraining/views",
        "evaluation/confusion",
    }
    files = {path.name for path in (folder / "figures").iterdir()}
    assert files == {f"{name.replace('/', '_')}.png" for name in images}
    assert [event.step for event in pages.Images("clients/participation")] == [1, 2, 3]
    assert [event.step for event in pages.Images("evaluation/confusion")] == [3]
    assert [event.value for event in pages.Scalars("final/accuracy")] == pytest.approx(
        [accuracies[-1]]
    )
    assert len(pages.Scalars("pretraining_loss/resnet8")) == 1
    assert len(list(folder.parent.rglob("events*"))) == 1  # no further run for the final results
    text = text_of(pages, "privacy")
    for line in federation.privacy():
        assert line in text
    for row in federation.guarantees():
        assert f"| {row.sent} | {row.guarantee} | {row.cost} |" in text
        assert row.sent in printed


def test_a_method_without_scores_has_no_pages_of_them(finished):
    _, folder, pages, _ = finished["FedAvg"]
    images = ["data/split", "clients/participation", "evaluation/confusion"]
    assert pages.Tags()["images"] == images
    assert read_json(folder / "summary.json")["privacy"] == [
        UPDATES_IN_THE_CLEAR,
        "NOT private: the training losses that clients send in every round",
    ]


def test_rounds_without_validation_have_no_accuracy(tmp_path):
    """Neither TensorBoard nor the files need a number in every round, and figures are optional."""
    federation, report = create(FedDF(remember=True)), FederationReport(images=False)
    folder = reported(tmp_path, federation, 3, report, check_val_every_n_epoch=2)
    measured = ["accuracy", "teachers/accuracy", "averaged_accuracy/resnet8", "seconds/evaluation"]
    with (folder / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in measured:
        assert [name in entry for entry in federation.history] == [False, True, False]
        assert [row[name] for row in rows] == ["", str(federation.history[1][name]), ""]
    summary = read_json(folder / "summary.json")
    assert summary["accuracy"] == summary["best_accuracy"] == federation.history[1]["accuracy"]
    pages = events(folder)
    [scalar] = pages.Scalars("teachers/accuracy")
    assert scalar.step == 2
    assert scalar.value == pytest.approx(federation.history[1]["teachers/accuracy"])
    assert len(pages.Scalars("seconds/teachers")) == 3
    assert pages.Tags()["images"] == []
    assert not (folder / "figures").exists()


def test_without_a_logger_the_files_are_below_the_root(tmp_path):
    fit(tmp_path, create(FedAvg()), callbacks=[FederationReport()], fast_dev_run=True)
    assert not list(tmp_path.iterdir())
    fit(tmp_path, create(FedAvg()), 1, callbacks=[FederationReport()])
    assert (tmp_path / "curve.csv").is_file()
    assert (tmp_path / "figures" / "data_split.png").is_file()
    assert read_json(tmp_path / "summary.json")["rounds"] == 1


def test_nothing_is_written_unless_a_folder_is_given(tmp_path, monkeypatch, capsys):
    """Lightning's default_root_dir is the current folder, and so is save_dir of WandbLogger."""
    monkeypatch.chdir(tmp_path)
    for logger in (False, Pictures()):
        fit(None, create(FedDF(pretrained=True)), 1, logger=logger, callbacks=[FederationReport()])
        assert not list(tmp_path.iterdir())
        assert "report and figures: not written, " in capsys.readouterr().out
    assert "evaluation/confusion" in logger.figures
    assert logger.settings["participation"] == 1.0
    fit("given", create(FedAvg()), 1, logger=logger)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


class Pictures(Logger):
    """Like WandbLogger: it takes figures, and its folder is the current one."""

    name = version = None
    save_dir = "."
    log_metrics = mock.Mock()

    def __init__(self):
        self.figures = []

    def log_image(self, name, images, step):
        self.figures.append(name)

    def log_hyperparams(self, params):
        self.settings = params


def test_a_report_is_never_overwritten(tmp_path):
    """The next fit takes another folder; a resumed one goes on in its own."""
    saved, files = {}, {"curve.csv", "summary.json"}
    for rounds, folder in ((1, tmp_path), (2, tmp_path / "fit_2"), (3, tmp_path / "fit_3")):
        trainer = fit(tmp_path, create(FedAvg()), rounds)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        assert files <= {path.name for path in folder.iterdir()}
        saved[folder] = (folder / "curve.csv").read_bytes()
    fit(tmp_path, create(FedAvg()), 4, ckpt_path=tmp_path / "2.ckpt")
    rounds = {path: read_json(path / "summary.json")["rounds"] for path in saved}
    assert list(rounds.values()) == [1, 4, 3]
    assert all((path / "curve.csv").read_bytes().startswith(saved[path]) for path in saved)
    assert not (tmp_path / "fit_4").exists()


def test_a_csv_logger_has_the_files_beside_its_own(tmp_path):
    """It takes neither figures nor texts, but measurements, the loss of h_0 and the settings."""
    logger = CSVLogger(tmp_path)
    options = {"callbacks": [FederationReport()], "check_val_every_n_epoch": 2}
    fit(tmp_path, create(FedDF(pretrained=True)), 3, logger=logger, **options)
    folder = Path(logger.log_dir)
    assert read_json(folder / "summary.json")["rounds"] == 3
    assert (folder / "figures" / "clients_participation.png").is_file()
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(bool(row["pretraining_loss/resnet8"]) for row in rows) == 1
    assert [row["step"] for row in rows if row["teachers/accuracy"]] == ["2"]
    assert "participation: 1.0" in (folder / "hparams.yaml").read_text()


def layout_of(pages):
    """The tags of each chart of the page of custom scalars."""
    packed = pages.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    layout = layout_pb2.Layout.FromString(packed)
    return {c.title: list(c.multiline.tag) for category in layout.category for c in category.chart}


def test_the_charts_of_the_first_page_show_measurements_of_the_run(finished):
    """Every chart has a line, but the accuracy of classes."""
    for name, scored in (("FedAUX", True), ("FedAvg", False)):
        federation, _, pages, _ = finished[name]
        charts = layout_of(pages)
        names = set(federation.history[0]) | ({"pretraining_loss/resnet8"} if scored else set())
        for title, tags in charts.items():
            matches = any(re.match(tag, name) for name in names for tag in tags)
            assert matches or title == "accuracy of each class", tags
        assert ("effective teachers" in charts) is scored
        [accuracy] = [tags for title, tags in charts.items() if "student" in title]
        matched = {name for name in names for tag in accuracy if re.match(tag, name)}
        teachers = {"teachers/accuracy"} if scored else set()
        assert matched == {"accuracy", "averaged_accuracy/resnet8"} | teachers
        tag = charts["accuracy of each class"][0]
        assert re.match(tag, "class_accuracy/cat")
        assert re.match(tag, "val/class_accuracy/cat")


def test_tensorboard_draws_the_charts_of_two_methods_once(finished, tmp_path):
    """It merges the layouts of runs, and charts of the same title only if their tags are equal."""
    runs = EventMultiplexer()
    for name, (_, folder, _, _) in finished.items():
        runs.AddRun(str(folder), name)
    other = create(FedAvg(), metrics=["f1", "auroc"])
    runs.AddRun(str(reported(tmp_path, other, 1, FederationReport(images=False))), "other")
    runs.Reload()
    plugin = CustomScalarsPlugin(TBContext(data_provider=MultiplexerDataProvider(runs, "")))
    layout = json.loads(plugin.layout_impl(RequestContext(), ""))
    titles = [chart["title"] for page in layout["category"] for chart in page["chart"]]
    assert len(set(titles)) == len(titles)
    assert {"accuracy: student, average, teachers", "f1", "auroc"} <= set(titles)


def test_about_this_run(finished):
    _, folder, pages, _ = finished["FedAUX"]
    text = text_of(pages, "about this run")
    assert "| method | FedAUX |" in text
    assert "alpha = 1 " in text
    assert "the scores are nearly uniform" in text  # the meaning of effective teachers
    assert "came from the cache" not in text
    assert sorted(pages.Tags()["tensors"])[0] == "about this run/text_summary"
    root, quick = folder.parent.parent, FederationReport(images=False)
    text = text_of(
        events(reported(root, create(paper_fedaux()), 0, quick, "again")), "about this run"
    )
    assert "came from the cache" in text  # and there is no loss of its pre-training
    assert "effective teachers" not in text_of(finished["FedAvg"][2], "about this run")


def test_the_participation_is_drawn_ever_more_rarely(tmp_path, monkeypatch):
    drawn = []

    def draw(federation):
        drawn.append(len(federation.history))
        yield "clients/participation", Figure(figsize=(1, 1))

    monkeypatch.setattr(run_figures, "client_figures", draw)
    monkeypatch.setattr(report_module, "write_summary", lambda *_: None)
    monkeypatch.setattr(RunNotes, "find", lambda *_: [])
    report, federation = FederationReport(), SimpleNamespace(history=[])
    folders = {"log_dir": tmp_path, "default_root_dir": tmp_path}
    trainer = SimpleNamespace(loggers=[], is_global_zero=True, fast_dev_run=False, **folders)
    for done in range(1, 51):
        federation.history.append({"round": done})
        report.on_round_end(trainer, federation)
    assert drawn == [1, 2, 4, 8, 16, 32]


def test_notes_are_printed_once_and_kept(tmp_path, capsys):
    """One client with little data, in turn: classes are missing in every round."""
    federation = create(FedAvg(), participation=0.1)
    quick = FederationReport(images=False)
    folder = reported(tmp_path, federation, 3, quick, data=split(3, alpha=0.01))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    kept = read_json(folder / "summary.json")["notes"]
    assert [note.split(":")[0] for note in kept] == ["round 1", "round 2", "round 3"]
    assert told == [f"note: {kept[0]}"]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_does_not_repeat_its_notes(tmp_path, capsys):
    data = {"private": FewDigits(train=20), "alpha": 0.01}
    options = {"enable_checkpointing": True}

    def resume(rounds, checkpoint=None):
        saved = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
        callbacks = [FederationReport(images=False), saved]
        fit(
            tmp_path,
            create(FedAvg(), participation=0.1),
            rounds,
            split(3, **data),
            checkpoint,
            callbacks=callbacks,
            **options,
        )
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]

    assert len(resume(1)) == 1
    before = read_json(tmp_path / "summary.json")["notes"]
    assert resume(2, tmp_path / "last.ckpt") == []
    after = read_json(tmp_path / "summary.json")["notes"]
    assert len(after) == len(before) + 1  # they are kept all the same


def test_notes_about_scores(tmp_path, capsys):
    """Noise a thousand times the vectors, and scores that are nearly the same for all."""
    useless = {"scoring": MeanScoring(8, sharpness=1e-3), "privacy": Privacy(1e-4)}
    federation, quick = create(FedAUX(**useless)), FederationReport(images=False)
    folder = reported(tmp_path, federation, 1, quick)
    kept = read_json(folder / "summary.json")["notes"]
    assert [note.split(":")[0] for note in kept][:2] == [
        "noise exceeds the signal",
        "effective teachers 3.00 of 3",
    ]
    printed = capsys.readouterr().out
    assert all(f"note: {note}\n" in printed for note in kept)
    federation = create(FedAUX(scoring=MeanScoring(8), privacy=Privacy(None)))
    reported(tmp_path / "without", federation, 1, quick)
    printed = capsys.readouterr().out
    assert "noise exceeds" not in printed
    assert "nearly uniform" not in printed


def test_numbers_that_json_does_not_have(tmp_path):
    """A loss that is missing, and an infinite setting, which is still a setting."""
    federation = create(FedAvg(), model_options={"width": 0.125})
    fit(tmp_path, federation, 1)
    federation.history[0]["client_loss/mean"] = float("nan")
    federation.model_options["width"] = float("inf")
    write_summary(tmp_path / "summary.json", federation)
    assert read_json(tmp_path / "summary.json")["settings"]["model_options"]["width"] == "inf"
    write_curve(tmp_path / "curve.csv", federation.history)
    with (tmp_path / "curve.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["client_loss/mean"] == "nan"


WOULD_BE = "each client's release (its scoring head) would be (epsilon 0.5, delta"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilon": 0.5}, [WOULD_BE]),
        (
            {"epsilon": 0.5, "secret": True},
            [
                "each client's release (its scoring head) is (epsilon 0.5, delta 1e-05)-private",
                "every run costs (epsilon 0.5, delta 1e-05) again, and nothing adds runs up",
            ],
        ),
        ({"mechanism": "classical"}, ["classical Gaussian mechanism"]),
        ({"norm_bound": "private"}, ["but is not: the norm bound is the largest of private data"]),
    ],
)
def test_what_is_private_and_what_is_not(tmp_path_factory, options, says):
    root = tmp_path_factory.getbasetemp() / "privacy"  # h_0 is the same for all
    federation = create(paper_fedaux(**options))
    fit(root, federation, 0)
    lines = federation.privacy()
    assert all(any(text in line for line in lines) for text in says)
    assert lines[-2] == UPDATES_IN_THE_CLEAR
    private = any(re.search(r"is \(epsilon .*\)-private", line) for line in lines)
    assert private is options.get("secret", False)


def test_the_lines_before_the_first_round(tmp_path, capsys):
    """The table has three lines where clients make one release, and no repr of an object."""
    mean = FedAUX(scoring=MeanScoring(dimensions=8, whitening=0.5), privacy=Privacy(1.0))
    reported(tmp_path, create(mean), 1, FederationReport(images=False))
    lines = capsys.readouterr().out.splitlines()
    header = next(number for number, line in enumerate(lines) if "what leaves a client" in line)
    table = [re.split(" {2,}", line) for line in lines[header : header + 3]]
    assert table == [
        ["what leaves a client (docs/privacy.md)", "guarantee", "cost (epsilon, delta)"],
        [
            "once: the mean of its whitened features (8 dimensions)",
            "NOT private (simulated noise)",
            "with secret noise (1, 1e-05)",
        ],
        ["every round: its model and its training loss", "NOT private", "unlimited"],
    ]
    assert lines[header + 3] == UPDATES_IN_THE_CLEAR
    assert not any("Mean()" in line or line.startswith("privacy:") for line in lines)
    assert Path("docs/privacy.md").is_file()


def test_what_clients_keep_between_rounds_is_not_private(tmp_path):
    federation = create(Centralized(), {"resnet8": 1})
    fit(tmp_path, federation, 0)
    line = federation.privacy()[-1]
    assert "what they keep between rounds, which the server's checkpoint holds" in line


class Wards(FewDigits):
    """Data that name their clients."""

    def train(self):
        examples = super().train()
        owners = torch.arange(len(examples)) % 3
        return replace(examples, clients=owners, client_names=("Ada", "Bea", "Cleo"))


def test_with_secret_noise_nothing_is_shown_by_class_or_name(tmp_path, monkeypatch):
    """Counts of classes and held-out data are private, given names may be those of persons.

    Public images with the highest scores are not private.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    top, shown = run_figures.samples.top_images_figure, {}

    def drawn(inputs, scores, names):
        shown[secret] = names
        return top(inputs, scores, names)

    monkeypatch.setattr(run_figures.samples, "top_images_figure", drawn)
    for secret in (True, False):
        federation = create(paper_fedaux(secret=secret))
        data = split(3, private=Wards(), validation_fraction=0.25)
        pages = events(reported(tmp_path / str(secret), federation, 1, data=data))
        images = pages.Tags()["images"]
        assert "certainty/top_images" in images
        assert ("data/split" in images) is not secret
        assert ("evaluation/confusion" in images) is not secret
        assert any("class_accuracy" in tag for tag in pages.Tags()["scalars"]) is not secret
        assert any("class_accuracy" in key for key in federation.history[0]) is not secret
        assert "val/accuracy" in federation.history[0]
        figure = dict(run_figures.client_figures(federation))["clients/participation"]
        rows = figure.axes[0].get_yticklabels()
        assert rows[0].get_text() == ("client 0" if secret else "Ada")
        [line] = [line for line in federation.privacy() if "validation data" in line]
        assert line.startswith("NOT private: the accuracies on the validation data")
    assert shown[True] == ["client 0", "client 1", "client 2"]
    assert shown[False][0].startswith("Ada (")
    given = create(FedAvg())
    fit(tmp_path, given, 0)
    assert not any("validation" in line for line in given.privacy())


def test_a_run_says_that_its_checkpoint_has_logits_of_held_out_data(tmp_path):
    federation = create(FedDF(remember=True))
    fit(tmp_path, federation, 1, split(3, validation_fraction=0.25))
    kept = federation.state.teachers.values()
    assert all("evaluation" in teacher.logits for teacher in kept)
    line = federation.privacy()[-1]
    assert line.startswith("NOT private: the clients' logits on the validation data")


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_test_of_the_best_round_names_the_round(tmp_path):
    """Also if the checkpoint was saved right after validation, before the end of its round."""
    federation, data = (
        create(FedAvg()),
        split(private=FewDigits(train=200), validation_fraction=0.25),
    )
    best = BestCheckpoint(dirpath=tmp_path / "best", save_on_train_epoch_end=False)
    options = {"callbacks": [best], "enable_checkpointing": True, "check_val_every_n_epoch": 2}
    trainer = fit(tmp_path, federation, 2, data, **options)
    trainer.test(federation, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    assert len(federation.history) == 1
    assert read_json(tmp_path / "summary.json")["test"]["round"] == 2


def test_a_validation_leaves_the_history_alone(tmp_path):
    federation = create(FedAvg())
    trainer = fit(tmp_path, federation, 1)
    before = dict(federation.history[0])
    other = federation.data.client_batches(0)
    [measured] = trainer.validate(federation, dataloaders=other, verbose=False)
    assert measured["accuracy"] != before["accuracy"]
    assert federation.history == [before]
