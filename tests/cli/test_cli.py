"""The command line as people meet it: in process, on the embedded digits, with a tiny network."""

import csv
import gc
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import pytorch_lightning as pl
import torch
import yaml

import fedaux_pl
from fedaux_pl.cli import model_verbs
from fedaux_pl.cli import verbs as commands
from fedaux_pl.cli.entry import VERBS, main
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.scoring import Whitened
from tests.command_line import QUICKSTART, command

pytestmark = pytest.mark.usefixtures("without_figures")
TINY = [
    f"--config={QUICKSTART}",
    "--model.model_options={width: 0.125}",
    "--model.pretraining.epochs=1",
    "--model.clients={resnet8: 3}",
    "--model.local={epochs: 1, batch_size: 64}",
    "--model.distillation.epochs=1",
    "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
]


def tiny(verb, root, *more):
    return [verb, *TINY, f"--trainer.default_root_dir={root}", *more]


def status(args):
    """The exit status of a command line, however it ends."""
    try:
        return main(args)
    except SystemExit as ended:
        return ended.code


def weights(root):
    (path,) = root.rglob("last.ckpt")
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the root of the finished run, to resume from."""
    shutil.copytree(finished_run.root, tmp_path / "logs")
    return tmp_path / "logs"


def folder_of_run(root):
    """The folder of the only run."""
    [folder] = (root / "runs").iterdir()
    return folder


# --- fit -------------------------------------------------------------------------------------


def test_fit_says_what_came_out_and_where_it_is(finished_run):
    root, folder, printed = finished_run.root, finished_run.folder, finished_run.printed
    summary = json.loads((folder / "summary.json").read_text())
    accuracy, best = summary["accuracy"], summary["best_accuracy"]
    assert (
        f"FedAUX with memory after 2 rounds: accuracy {accuracy:.1%} (best over rounds on the test "
        f"data {best:.1%})" in printed
    )
    kept = "last.ckpt holds the model of the last round: no validation data chose another one\n"
    assert f"{kept}Results and checkpoint: {folder}\n" in printed
    assert f"TensorBoard: tensorboard --logdir {root}\n" in printed
    assert "every round: its model and its training loss" in printed


def test_a_run_that_is_over_is_let_go(tmp_path):
    """Another one in the same process finds the memory free that it took."""

    def federations():
        gc.collect()
        return {id(one): one for one in gc.get_objects() if type(one) is Federation}

    before = federations()
    assert main(command("fit", tmp_path, "--trainer.max_epochs=1")) == 0
    assert federations().keys() <= before.keys()


def test_fit_writes_everything_below_its_folder(finished_run, monkeypatch, tmp_path):
    folder = finished_run.folder
    names = {path.name.partition(".0")[0] for path in folder.rglob("*") if path.is_file()}
    assert {"summary.json", "curve.csv", "last.ckpt", "config.yaml"} <= names
    assert list(folder.glob("events.out.tfevents*"))
    with (folder / "curve.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2"]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["model"]["clients"]["resnet8"] == 2

    monkeypatch.chdir(tmp_path)  # and without a logger nothing lands where one happens to be
    more = ["--trainer.logger=false", "--trainer.max_epochs=1", "--model.algorithm=FedAvg"]
    assert main(command("fit", tmp_path / "out", *more)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {"curve.csv", "checkpoints"} <= {p.name for p in folder_of_run(Path("out")).iterdir()}


def test_fit_finds_what_pretrain_learned(finished_run, tmp_path, capsys):
    assert main(command("pretrain", tmp_path)) == 0
    printed = capsys.readouterr().out
    assert re.search(r"h_0 of resnet8: kNN accuracy \d+\.\d%", printed)
    assert f"Cached in {tmp_path / 'cache'}" in printed
    learned = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*.pt")}
    of_fit = {path.name for path in (finished_run.root / "cache").glob("h0-*")}
    assert {path.name for path in learned} == of_fit
    assert not list(tmp_path.rglob("last.ckpt"))

    assert main(command("fit", tmp_path, "--trainer.max_epochs=1")) == 0
    found = (tmp_path / "cache").glob("h0-*")
    assert {path: path.stat().st_mtime_ns for path in found} == learned


def test_pretrain_runs_no_round_and_leaves_the_trainer_as_it_was(tmp_path):
    cli = commands.pretrain(tiny("pretrain", tmp_path)[1:])
    assert (cli.model.history, cli.model.heads) == ([], [])
    assert (cli.trainer.current_epoch, cli.trainer.max_epochs) == (0, 2)


def test_pretrain_refuses_a_method_that_starts_from_random_weights(tmp_path, capsys):
    assert main(tiny("pretrain", tmp_path, "--model.algorithm=FedDF")) == 1
    assert "set model.algorithm.pretrained to true" in capsys.readouterr().err


# --- with a checkpoint -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_checkpoint_has_the_accuracy_of_the_summary(verb, finished_run, capsys):
    folder = finished_run.folder
    config = (folder / "config.yaml").read_text()
    assert main([verb, f"--ckpt_path={finished_run.checkpoint}"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    printed = capsys.readouterr().out
    accuracy = f"{summary['accuracy']:.2%} (resnet8 "
    assert f"FedAUX with memory after 2 rounds: accuracy {accuracy}" in printed
    assert ("no validation data" in printed) == (verb == "validate")
    assert (folder / "config.yaml").read_text() == config


@pytest.mark.parametrize("verb", ["validate", "test"])
@pytest.mark.parametrize(("chosen", "name"), [(".", "best"), ("last", "best"), ("file", "last")])
def test_a_run_is_measured_at_its_best_round(verb, chosen, name, run, capsys):
    """As fit, predict and export do."""
    last = folder_of_run(run) / "checkpoints" / "last.ckpt"
    best = torch.load(last, weights_only=True)
    best["federation"]["history"] = best["federation"]["history"][:1]
    torch.save(best, last.with_name("best.ckpt"))
    given = {".": folder_of_run(run), "last": "last", "file": last}[chosen]
    assert main([verb, f"--ckpt_path={given}", f"--trainer.default_root_dir={run}"]) == 0
    printed = capsys.readouterr().out
    assert f"Checkpoint: {last.with_name(f'{name}.ckpt')}\n" in printed
    assert f"after {'1 round' if name == 'best' else '2 rounds'}: accuracy" in printed


def test_fit_resumes_the_last_round_though_there_is_a_best(run, capsys):
    last = folder_of_run(run) / "checkpoints" / "last.ckpt"
    last.with_name("best.ckpt").write_text("not read")
    more = ["--ckpt_path", str(folder_of_run(run)), "--trainer.max_epochs=2"]
    assert main(command("fit", run, *more)) == 0
    assert "FedAUX with memory after 2 rounds" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["validate", "test", "predict", "export"])
def test_the_help_says_which_checkpoint_is_taken(verb, capsys):
    assert status([verb, "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "'last' for the newest: its best.ckpt if validation data chose one, else its" in printed


class CtrlC(pl.Callback):
    """Ctrl-C in the second round."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


def test_after_ctrl_c_the_printed_command_resumes_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    interrupt = f"--trainer.callbacks={__name__}.CtrlC"
    try:
        assert main(tiny("fit", "my logs", "--model.algorithm=FedAvg", interrupt)) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    printed = capsys.readouterr().out
    [folder] = Path("my logs", "runs").iterdir()
    [line] = [line for line in printed.splitlines() if line.startswith("interrupted")]
    command_line = f"fedaux-pl fit --ckpt_path '{folder}'"
    assert line == f"interrupted after round 1: resume with {command_line}"
    monkeypatch.setattr(CtrlC, "on_train_batch_start", pl.Callback.on_train_batch_start)
    assert main(shlex.split(command_line)[1:]) == 0
    assert f"Results and checkpoint: {folder}" in capsys.readouterr().out


def test_last_goes_on_in_the_same_folder(run, capsys):
    assert main(command("fit", run, "--ckpt_path=last", "--trainer.max_epochs=3")) == 0
    assert "FedAUX with memory after 3 rounds" in capsys.readouterr().out
    folder = folder_of_run(run)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 3
    with (folder / "curve.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    assert len(list(folder.rglob("*.ckpt"))) == 1
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 2


def test_a_checkpoint_that_does_not_exist(tmp_path, capsys):
    assert main(tiny("validate", tmp_path, "--ckpt_path=elsewhere.ckpt")) == 1
    message = capsys.readouterr().err
    assert f"there is no checkpoint at {Path('elsewhere.ckpt').absolute()}" in message


def test_a_checkpoint_of_other_settings_is_refused(finished_run, capsys):
    for more, name, old, new in (
        ("--model.local.lr=0.5", "local.lr", "0.001", "0.5"),
        ("--model.algorithm.privacy.epsilon=7", "algorithm.epsilon", "1.0", "7.0"),
        ("--data.alpha=3", "--data.alpha", "0.01", "3.0"),
    ):
        assert main(command("fit", finished_run.root, "--ckpt_path=last", more)) == 1
        message = capsys.readouterr().err
        assert f"made with {name} = {old}, but this run asks for {new}" in message
        assert "Traceback" not in message


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, capsys):
    """Also without other options, as its run has them."""
    text = tmp_path / "text.ckpt"
    text.write_text("hello")
    other = tmp_path / "other.ckpt"
    torch.save({"state_dict": {}}, other)
    for args, message in (
        (tiny("fit", tmp_path, f"--ckpt_path={text}"), f"{text} cannot be read as a checkpoint"),
        (["fit", f"--ckpt_path={text}"], f"{text} cannot be read as a checkpoint"),
        (["test", f"--ckpt_path={other}"], f"{other} is not the checkpoint of a federation"),
    ):
        assert main(args) == 1
        assert message in capsys.readouterr().err


MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.78 GiB."
DATA = "--data.memory host"
PLAIN = "--model.acceleration off"
ROUND = "--model.local.batch_size below 64, --model.distillation.batch_size below 64"


@pytest.mark.parametrize(
    ("stage", "options", "expected"),
    [
        ((LocalClients, "train"), [], [DATA, ROUND, PLAIN]),
        ((LocalClients, "train"), ["--data.memory=host"], [ROUND, PLAIN]),
        ((LocalClients, "train"), [PLAIN.replace(" ", "=")], [DATA, ROUND]),
        ((H0Source, "_learn"), [], [DATA, "--model.pretraining.batch_size below 128", PLAIN]),
    ],
)
def test_out_of_memory_is_one_line_with_the_options_that_help(
    stage, options, expected, tmp_path, monkeypatch, capsys
):
    def fail(*args, **options):
        raise torch.OutOfMemoryError(MEMORY)

    monkeypatch.setattr(*stage, fail)
    assert main(tiny("fit", tmp_path, *options)) == 1
    message = capsys.readouterr().err.rstrip().split("\n")[-1]
    sizes = "fedaux-pl fit: error: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert message == f"{sizes}: these need less memory: {', '.join(expected)}"


def test_an_error_that_ends_cuda_says_how_to_continue(tmp_path, monkeypatch, capsys):
    def fail(*args, **options):
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nFor debugging ...")

    monkeypatch.setattr(H0Source, "_learn", fail)
    assert main(tiny("fit", tmp_path)) == 1
    message = capsys.readouterr().err.rstrip().split("\n")[-1]
    assert message.startswith("fedaux-pl fit: error: CUDA error: an illegal memory access: no ")
    assert "--ckpt_path last, and with --model.acceleration off" in message


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--model.clients={resnet8:\xa0902}", "901 samples cannot be split over 902 clients"),
        ("--data.auxiliary=null", "FedAUX needs auxiliary data: set --data.auxiliary"),
        ("--trainer.strategy=foo", "invalid strategy"),
        ("--trainer.strategy=fsdp", "requires a GPU"),
        (
            "--trainer.devices=2 --trainer.strategy=ddp_spawn",
            "trainer.strategy: got DDPStrategy; expected auto or ddp",
        ),
        ("--trainer.gradient_clip_val=1", "trainer.gradient_clip_val"),
        ("--data.private=CIFAR10 --data.private.root=nowhere", "missing data: cifar-10-python"),
        ("--data.auxiliary=ImageFolder --data.auxiliary.root=nowhere", "No folder of images was"),
        ("--data.auxiliary.size=16", "same shape"),
        ("--ckpt_path=nowhere.ckpt", "there is no checkpoint at"),
        ("--config=nowhere.yaml", "does not exist"),
        ("--trainer.default_root_dir=/dev/null/logs", "/dev/null/logs"),
    ],
)
def test_a_mistake_is_one_clear_message_before_any_training(args, words, tmp_path, capsys):
    """Mistakes that the Trainer, the data or the disk refuse; tests/runs has those in options."""
    more = [argument.replace("\xa0", " ") for argument in args.split(" ")]
    assert main(tiny("fit", tmp_path, *more)) in (1, 2)
    printed, message = capsys.readouterr()
    message = message[message.index("fedaux-pl fit: error: ") :]
    assert words in message
    assert "Traceback" not in message
    assert "usage:" not in message
    assert len(message.strip().splitlines()) <= 3
    assert "what leaves a client" not in printed
    assert not list(tmp_path.rglob("*.pt"))
    assert not list(tmp_path.rglob("*.ckpt"))


def test_half_precision_on_a_cpu_says_what_it_becomes(tmp_path):
    verb, *args = tiny("fit", tmp_path, "--trainer.precision=16-mixed")
    with pytest.warns(UserWarning, match="not supported on CPU. Using `precision='bf16-mixed'`"):
        cli = commands.FederationCLI(verb, args)
    assert cli.trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(("verb", "part"), [("validate", "val"), ("test", "test")])
def test_measuring_needs_a_checkpoint_and_batches(verb, part, finished_run, tmp_path, capsys):
    for args in ([verb], tiny(verb, tmp_path)):
        assert main(args) == 1
        needs = f"fedaux-pl {verb}: error: {verb} needs the checkpoint of a run: add --ckpt_path la"
        assert needs in capsys.readouterr().err
    limit = f"trainer.limit_{part}_batches"
    assert main([verb, f"--ckpt_path={finished_run.checkpoint}", f"--{limit}=0"]) == 1
    assert f"{verb} measures nothing with {limit} 0: leave it out" in capsys.readouterr().err


def test_an_error_within_a_round_keeps_its_traceback(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("a mistake in the code")

    monkeypatch.setattr("fedaux_pl.federation.server.average_updates", broken)
    with pytest.raises(ValueError, match="a mistake in the code"):
        main(command("fit", tmp_path, "--model.algorithm=FedAvg"))


# --- help --------------------------------------------------------------------------------------


def test_sites_help_names_its_verbs(capsys):
    assert main(["sites", "--help"]) == 0
    assert "sites init|status|pin" in capsys.readouterr().out


def test_help_names_the_verbs_and_where_to_read_on(capsys):
    for args in ([], ["--help"], ["-h"]):
        assert main(args) == 0
        printed = capsys.readouterr().out
        assert all(re.search(rf"^  {verb} ", printed, re.MULTILINE) for verb in VERBS)
        assert "fedaux-pl fit --config quickstart" in printed
        assert "fedaux-pl fit --model.algorithm.help FedAUX" in printed


@pytest.mark.parametrize(("verb", "meant"), [("fti", "fit"), ("tset", "test"), ("train", "fit")])
def test_an_unknown_verb_is_told_the_verbs(verb, meant, capsys):
    assert main([verb, "--config=a.yaml"]) == 2
    assert (
        f"verb: got {verb!r} (did you mean {meant}?); expected one of fit, validate, test, "
        "predict, pretrain, benchmark, export, compare, sweep, report, sites, site"
    ) in capsys.readouterr().err


def test_wrong_options_are_told_in_two_lines_with_status_2(capsys):
    """Of every parser; nothing else is printed."""
    for verb, args, says in (
        ("fit", ["--config=quickstart", "--rounds=3"], "there is no option --rounds (did you "),
        ("sites init", ["--server=host"], "missing option --sites: add it"),
        ("compare", [], "the following arguments are required: RUN"),
    ):
        assert main([*verb.split(), *args]) == 2
        printed, message = capsys.readouterr()
        first, second = message.splitlines()
        assert first.startswith(f"fedaux-pl {verb}: error: {says}")
        assert second == (
            f"(fedaux-pl --help shows examples and the common options, fedaux-pl {verb} --help all)"
        )
        assert printed == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model.help"], ["--model.participation", "--model.clients", "linear evaluation"]),
        (
            ["--model.algorithm.help", "FedAUX"],
            [
                "--model.algorithm.privacy.epsilon",
                "null for no",
                "--model.algorithm.scoring",
            ],
        ),
        (["--data.auxiliary.help", "ImageFolder"], ["--data.auxiliary.root"]),
        (
            ["--help"],
            [
                *("--seed_everything", "--ckpt_path", "--print_config", "--model.algorithm"),
                *("--model.local.epochs", "--data.alpha", "--data.private"),
                *("--trainer.max_epochs", "--trainer.precision", "--trainer.default_root_dir"),
            ],
        ),
    ],
)
def test_the_help_of_fit_documents_its_options(args, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *args])
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for word in words:
        assert word in printed


@pytest.mark.parametrize("verb", [[], ["fit"]])
def test_help_ends_quietly_if_its_reader_has_gone(verb):
    """As `fedaux-pl --help | head -n 1`."""
    reader, writer = os.pipe()
    os.close(reader)
    code = f"from fedaux_pl.cli import main; raise SystemExit(main({[*verb, '--help']}))"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_every_option_in_the_top_level_help_exists(capsys):
    """The options people set, with their values as they stand there, are taken by fit."""
    main(["--help"])
    usual = re.search(r"Common options:\n(.*?)\n\n", capsys.readouterr().out, re.DOTALL)[1]
    args = []
    for line in usual.splitlines():
        for option, value in re.findall(r"(--[\w.]+) ('.*?'|\S+)", line):
            if option != "--ckpt_path":
                args += [option, value.strip("'")]
    assert "--trainer.precision" in args
    cli = commands.FederationCLI("fit", [*args, "--trainer.accelerator=cpu"])
    assert cli.model.algorithm.name == "FedAUX with memory"
    assert cli.trainer.precision == "bf16-mixed"


@pytest.mark.filterwarnings("ignore:MPS available but not used")
def test_auto_is_the_cpu_on_a_mac(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_fabric.accelerators.MPSAccelerator.is_available", lambda: True)
    _, *args = tiny("fit", tmp_path, "--trainer.accelerator=auto")
    assert commands.FederationCLI("fit", args).trainer.strategy.root_device == torch.device("cpu")


def test_a_printed_configuration_can_be_fed_back(tmp_path, capsys):
    more = ["--model.participation=0.7", "--model.algorithm.scoring.dimensions=9"]
    more.append("--seed_everything=7")
    with pytest.raises(SystemExit) as ended:
        main(tiny("fit", tmp_path, *more, "--print_config"))
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    with pytest.raises(SystemExit):
        main(["fit", f"--config={tmp_path / 'printed.yaml'}", "--print_config"])
    assert capsys.readouterr().out == printed
    cli = commands.FederationCLI("fit", [f"--config={tmp_path / 'printed.yaml'}"])
    assert cli.model.participation == 0.7
    assert cli.model.algorithm.release.scoring.feature_map == Whitened(dimensions=9)
    assert "class_path: fedaux_pl.MeanScoring" in printed
    assert cli.datamodule.num_clients == 3
    assert cli.model.seed == cli.datamodule.seed == 7


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedaux-pl {fedaux_pl.__version__}\n"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("from fedaux_pl.cli.entry import main; main(['--version']); main(['--help'])", ["torch"]),
        # pre-training loads lightly, a logger TensorBoard: who asks for help waits for neither
        ("from fedaux_pl.cli import verbs", ["lightly", "tensorboard", "IPython"]),
    ],
)
def test_what_is_not_needed_is_not_imported(code, heavy):
    code += f"; import sys; loaded = set({heavy}) & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


QUICK = """
import sys
from fedaux_pl.cli import main

for args in {commands}:
    try:
        status = main(args)
    except SystemExit as ended:
        status = ended.code
    assert status == {status}, (args, status)
    loaded = {{"torch", "pytorch_lightning", "lightning", "transformers"}} & set(sys.modules)
    assert not loaded, (args, loaded)
"""


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (
            0,
            [
                "predict --help",
                "export --help",
                "export --model.help",
                "compare --help",
                "sweep --help",
                "report --help",
                "sites --help",
                "sites init --help",
                "sites status --help",
                "sites pin --help",
            ],
        ),
        (
            2,
            [
                "predict --ckpt_path last",
                "predict --ckpt_path last --imagse photos",
                "export last --format=pickle",
                "export last --model.batchnorm_statistics=none",
                "compare --metrics=f1",
                "sweep --jobs=2",
                "report a.yaml --metric=f1",
                "sites init --sites=a,b",
            ],
        ),
    ],
    ids=["help", "refused options"],
)
def test_verbs_without_a_trainer_answer_without_torch_and_lightning(status, lines):
    code = QUICK.format(commands=[line.split() for line in lines], status=status)
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()


def test_options_that_import_no_torch_accept_the_same_values():
    assert get_args(model_verbs._BatchNormOption) == get_args(BatchNormOption)


def test_the_package_does_not_import_pandas_for_help_or_a_plain_run():
    """Other packages may: scikit-learn, if it is there, which transformers imports."""
    code = """
import sys
from fedaux_pl.cli.entry import main
try:
    main(["fit", "--help"])
except SystemExit:
    pass
modules = {name: module for name, module in sys.modules.items() if name.startswith("fedaux_pl")}
assert "fedaux_pl.callbacks.client_results" in modules
users = [name for name, module in modules.items() if hasattr(module, "pd")]
assert not users, users
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_public_names_are_there():
    for name in fedaux_pl.__all__:
        assert getattr(fedaux_pl, name) is not None
    assert dir(fedaux_pl) == sorted(fedaux_pl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Centralised' in version "):
        _ = fedaux_pl.Centralised
