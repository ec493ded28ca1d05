import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.sweeps import cell_lock
from fedaux_pl.sweeps.cells import Cell, CellState, distinct, resolve
from tests.sweeps.stubs import task, write_run


def cell(*args, seed=0):
    return Cell({"method": "A"}, seed, ("--config", "quickstart", *args))


def test_keys_depend_on_what_changes_the_result():
    base, same, moved, plain, other, seeded, called = resolve(
        [
            cell(),
            cell("--data.alpha", "1e-2", "--model.algorithm.privacy.delta", "1e-5"),  # the defaults
            cell("--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.devices=2"),
            cell("--model.acceleration=off"),
            cell("--data.alpha", "0.02"),
            cell("--seed_everything", "1"),
            cell("--trainer.callbacks+=LearningRateFinder"),
        ]
    )
    # a new option that changes this is left out of keys at its default: finished cells of 2.0 stay
    assert base.key == "9ef6b976db29"
    assert distinct([base, same, other, moved]) == [base, other]
    assert base.key == same.key == moved.key == plain.key
    assert len({base.key, other.key, seeded.key, called.key}) == 4
    assert (base.rounds, base.config["data"]["num_clients"]) == (10, 20)
    assert seeded.config["model"]["seed"] == 1


def test_keys_depend_on_the_source_of_own_classes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited.py"
    file.write_text("from fedaux_pl import FedAvg\nfrom torch.nn import Linear\n")
    file.write_text(file.read_text() + "class Mine(FedAvg): pass\nclass Net(Linear): pass\n")
    (tmp_path / "my_method.py").write_text("from edited import Mine\nclass Other(Mine): pass")
    methods = [cell(f"--model.algorithm={name}") for name in ("edited.Mine", "my_method.Other")]
    cells = [cell(), *methods, cell("--model.clients={edited.Net: 3}")]
    before = [found.key for found in resolve(cells)]
    file.write_text(file.read_text() + "# changed\n")
    after = [found.key for found in resolve(cells)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]
    with pytest.raises(ConfigurationError, match=r"seed=0: absent[.]Net cannot be"):
        resolve([cell("--model.clients={absent.Net: 3}")])


def test_the_suffix_of_an_architecture_may_have_a_dot():
    [found] = resolve([cell("--model.clients={resnet8-v1.2: 3}")])
    assert found.config["model"]["clients"] == {"resnet8-v1.2": 3}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data.alpha", "x"], "method=A seed=3: --data.alpha: got x"),
        (["--config", "methods/fedavk"], "method=A seed=3: config: got methods/fedavk"),
        (["--trainer.plugins", "[3]"], r"seed=3: .*Given value: \[3\]"),  # of many lines
        (["--trainer.max_epochs", "-1"], "number of rounds"),
        (["--trainer.max_epochs", "0"], "got 0; expected at least 1"),
        (["--trainer.fast_dev_run", "true"], "fast_dev_run"),
        (["--ckpt_path", "null", "--trainer.default_root_dir", "x"], "give --root"),
    ],
)
def test_cells_that_do_not_parse_are_named(args, message, capsys):
    with pytest.raises(ConfigurationError, match=message):
        resolve([cell(*args, seed=3)])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--model.local.lr", "0"],
            "seed=3: --model.local.lr: got .*; expected to be a positive",
        ),
        (["--model.clients", "{resnet9: 2}"], "seed=3: unknown model 'resnet9'"),
    ],
)
def test_values_that_a_run_refuses_are_found_when_objects_are_created(args, message, capsys):
    resolve([cell(*args, seed=3)])  # as in reports, which create nothing
    with pytest.raises(ConfigurationError, match=message):
        resolve([cell(*args, seed=3)], check=True)
    assert capsys.readouterr().err == ""


def test_objects_of_cells_that_differ_in_the_seed_are_created_once(monkeypatch):
    created = []
    monkeypatch.setattr(Federation, "_forget", lambda federation: created.append(federation.seed))
    cells = [cell(), cell("--seed_everything", "1"), cell("--data.alpha", "1")]
    resolve([*cells, cell("--data.alpha", "1", "--seed_everything", "2")], check=True)
    assert created == [0, 0]


def test_command_lines_survive_the_shell():
    one = Cell({}, 0, ("--model.clients", "{resnet8: 3}"), Path("my logs"), key="k")
    assert one.shell_command == (
        "fedaux-pl fit --model.clients '{resnet8: 3}' --trainer.default_root_dir "
        "'my logs/cells/k' --ckpt_path last"
    )


def test_the_state_is_read_from_disk(tmp_path):
    two, three = task(tmp_path, "abc"), task(tmp_path, "abc", rounds=3)
    assert two.state is CellState.MISSING
    assert two.load_run().rounds == 0
    two.create()
    two.create()
    assert os.readlink(two.path / "cache") == "../../cache"
    assert (two.path / "cache").is_dir()
    assert two.state is CellState.MISSING
    write_run(two, 2)
    assert three.state is CellState.UNFINISHED
    two.failure.write_text(json.dumps({"error": "no disk"}))
    assert three.state is CellState.FAILED
    assert two.read_failure()["error"] == "no disk"
    assert two.state is CellState.DONE
    assert two.load_run().rounds == 2
    with cell_lock.held(two.lock):
        assert two.state is CellState.RUNNING
    assert two.state is CellState.DONE
    assert two.read_description() == {}


def test_with_validation_data_a_cell_is_done_after_its_test(tmp_path):
    one = task(tmp_path, "abc")
    run = write_run(one, 2, validation=True)
    assert one.state is CellState.UNFINISHED
    summary = {"rounds": 2, "last_test": {"accuracy": 0.3}}
    (run / "summary.json").write_text(json.dumps(summary))
    assert one.state is CellState.UNFINISHED
    (run / "summary.json").write_text(json.dumps({**summary, "test": {"accuracy": 0.4}}))
    assert one.state is CellState.DONE


def test_a_run_without_checkpoint_does_not_hide_the_one_after_it(tmp_path):
    one = task(tmp_path, "abc", rounds=1)
    left = write_run(one, 1, validation=True)  # killed before the checkpoint of its only round
    again = left.with_name("A-2")
    shutil.copytree(left, again)
    tested = {"accuracy": 0.4}
    summary = {"rounds": 1, "test": tested, "last_test": tested}
    (again / "summary.json").write_text(json.dumps(summary))
    assert one.state is CellState.DONE
    assert one.load_run().summary["test"] == {"accuracy": 0.4}


def test_damaged_files_are_named(tmp_path):
    one = task(tmp_path, "abc")
    one.path.mkdir(parents=True)
    one.failure.write_text("{")
    with pytest.raises(ConfigurationError, match=r"failed.json is damaged"):
        one.read_failure()


HOLD = "import sys, time; from pathlib import Path; from fedaux_pl.sweeps.cell_lock import held\n"
HOLD += "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(3600)"


def test_a_killed_process_of_this_host_frees_the_lock_at_once(tmp_path):
    lock = tmp_path / ".lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, lock], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert cell_lock.is_held(lock)
    assert cell_lock.holder(lock)["pid"] == process.pid
    with pytest.raises(BlockingIOError), cell_lock.held(lock):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    assert not cell_lock.is_held(lock)
    with cell_lock.held(lock):
        assert cell_lock.holder(lock)["pid"] == os.getpid()
    assert cell_lock.holder(lock) == {}


def test_a_process_of_another_host_is_alive_for_a_minute_after_its_last_sign(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    assert cell_lock.is_held(lock)
    with pytest.raises(BlockingIOError), cell_lock.held(lock):
        pass
    silent = time.time() - 61
    os.utime(lock, (silent, silent))
    assert not cell_lock.is_held(lock)
    with cell_lock.held(lock):
        pass


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_lock, "HEARTBEAT", 0.01)
    lock = tmp_path / ".lock"
    with cell_lock.held(lock):
        os.utime(lock, (1, 1))
        while lock.stat().st_mtime == 1:  # forever without signs
            time.sleep(0.01)
