from fedaux_pl.sweeps.cells import resolve
from fedaux_pl.sweeps.sweep_file import Cell
from fedaux_pl.sweeps.task import Task, plan


def cell(*args, seed=0):
    args = ("--config", "quickstart", *args, "--seed_everything", str(seed))
    return Cell({"args": " ".join(args)}, seed, args)


def planned(tmp_path, *cells):
    return plan(resolve(cells), tmp_path)


def test_pretraining_happens_once_for_each_h0(tmp_path):
    tasks = planned(
        tmp_path,
        cell("--data.alpha=1"),
        cell("--data.alpha=2", "--model.algorithm.epsilon=0.5"),
        cell("--config=methods/feddf_p", "--model.clients={resnet8: 3}"),  # the same h_0
        cell(seed=1),
        cell("--model.clients={shufflenet: 3}"),
        cell("--model.pretraining.epochs=3"),
        cell("--config=bf16"),
    )
    pretraining, fits = tasks[:5], tasks[5:]
    assert {task.verb for task in pretraining} == {"pretrain"}
    assert {task.verb for task in fits} == {"fit"}
    keys = [task.key for task in pretraining]
    assert [keys.index(task.needs) for task in fits] == [0, 0, 0, 1, 2, 3, 4]
    assert pretraining[0].command == [
        *("pretrain", "--config", "quickstart", "--data.alpha=1", "--seed_everything", "0"),
        *("--trainer.default_root_dir", str(tmp_path / "pretraining" / keys[0])),
    ]


def test_no_pretraining_without_need(tmp_path):
    tasks = planned(tmp_path, cell("--config=methods/fedavg"), cell("--model.pretraining.epochs=0"))
    assert [(task.verb, task.needs) for task in tasks] == [("fit", None), ("fit", None)]


def test_cells_with_the_same_settings_are_one_task(tmp_path):
    assert len(planned(tmp_path, cell("--data.alpha=1"), cell("--data.alpha=1.0"))) == 2  # and h_0


def test_command_lines_survive_the_shell(tmp_path):
    one = Task("fit", "my logs", "k", 1, {}, 0, ("--model.clients", "{resnet8: 3}"))
    assert one.line == (
        "fedaux-pl fit --model.clients '{resnet8: 3}' --trainer.default_root_dir "
        "'my logs/cells/k' --ckpt_path last"
    )
