"""The sweep files of configs/paper and configs/silos: cells and settings of their studies."""

import re
from pathlib import Path

import pytest
from jsonargparse import Namespace

from fedaux_pl.runs.config_files import FOLDER
from fedaux_pl.sweeps.cells import resolve
from fedaux_pl.sweeps.sweep_file import read_sweep
from tests.federations import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
# The number of cells without seeds.
CELLS = {
    "paper/table1": 66,
    "paper/table2": 80,
    "paper/table3": 72,
    "paper/table5": 36,
    "paper/fig3": 120 + 4,
    "paper/fig4": 20 + 2,
    "paper/fig5": 70,
    "paper/fig7": 24,
    "paper/fig13": 272,
    "paper/local_epochs": 30,
    "paper/fully_private": 3 * 3 * 6 * 4,
    "paper/class_statistics": 4 * 4,
    "paper/vote": 8 * 4,
    "paper/one_message": 2 * (4 * 3 + 2 * 2) * 3,
    "paper/digits_one_message": 2 * (4 * 2 + 2) * 2,
    "paper/digits_table1": 18,
    "paper/digits_fig3": 12 + 1,
}
PUBLISHED = {
    **{f"paper/table{number}": CELLS[f"paper/table{number}"] for number in (1, 2, 3, 5)},
    "paper/local_epochs": 30,
    "paper/fully_private": 2 * 5 * 4,
    "paper/fig4": 20,
    "paper/fig13": 20,
    "paper/fig3": 4,
    "paper/fig5": 4,
}
ROUNDS = {
    "paper/table3": 1,
    "paper/fig4": 20,
    "paper/class_statistics": 20,
    "paper/vote": 20,
    "paper/fig5": 10,
    "paper/fig13": 50,
    "paper/fully_private": 5,
    "paper/one_message": 5,
    "paper/digits_one_message": 3,
    "paper/digits_table1": 6,
    "paper/digits_fig3": 6,
}


def first_seed(name):
    """The cells of one seed."""
    cells = read_sweep(name).cells
    return [cell for cell in cells if cell.seed == cells[0].seed]


def find(name, *points):
    """All settings of the cells with these coordinates."""
    cells = first_seed(name)
    found = [[c for c in cells if point.items() <= c.coordinates.items()] for point in points]
    return resolve([cell for [cell] in found])


def test_every_file_has_a_number_of_cells():
    names = {f"paper/{path.stem}" for path in (FOLDER / "paper").glob("*.yaml")}
    assert names == set(CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_a_file_has_the_cells_and_numbers_of_the_paper(name):
    sweep = read_sweep(name)
    cells = first_seed(name)
    assert len(cells) == CELLS[name]
    assert len({str(cell.coordinates) for cell in cells}) == len(cells)
    assert not any("," in label for labels in sweep.axes.values() for label in labels)  # --select
    values = [value for cell in cells if (value := sweep.published_value(cell.coordinates))]
    assert len(values) == PUBLISHED.get(name, 0)
    assert all(0 < float(value.split(" ± ")[0]) < 100 for value in values)


def test_the_page_lists_all_files_with_their_cells():
    row = r"^\|.*\| `(paper/\w+)` \| (\d+) x (\d) \|"
    listed = re.findall(row, PAGE.read_text(), re.MULTILINE)
    seeds = {name: len({cell.seed for cell in read_sweep(name).cells}) for name in CELLS}
    expected = {(name, str(n), str(seeds[name])) for name, n in CELLS.items()}
    assert set(listed) == {row for row in expected if "digits" not in row[0]}


def test_the_sweep_file_of_the_page_can_be_run(tmp_path):
    page = PAGE.with_name("sweeps.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "memory.yaml").write_text(block)
    cells = read_sweep(tmp_path / "memory.yaml").cells
    assert len(cells) == 2 * 3 * 3
    point = {"memory": "without", "data.alpha": "100"}
    without = [cell for cell in cells if cell.coordinates == point]
    [resolved] = resolve(without[:1])
    assert resolved.rounds == 5
    assert resolved.config["model"]["algorithm"]["init_args"]["remember"] is False


def different_cells():
    """Cells that together have every layer and every value of an option in all files."""
    left = [
        (set(zip(cell.args[::2], cell.args[1::2], strict=True)), name, cell)
        for name in CELLS
        for cell in first_seed(name)
    ]
    while left:
        settings, name, cell = max(left, key=lambda entry: len(entry[0]))
        yield name, cell
        left = [(new, *rest) for old, *rest in left if (new := old - settings)]


@pytest.mark.parametrize(
    ("name", "cell"), [pytest.param(*pair, id=pair[1].name) for pair in different_cells()]
)
def test_cells_create_what_their_labels_say(name, cell, resolver):
    # drawing the weights of a wide network takes long
    small = [f"--model.model_options={SMALL}"] if "fedaux_resnet8" in cell.args else []
    resolver = resolver()
    resolver.resolve([*cell.args, *small])
    config = resolver.config
    made = resolver.parser.instantiate_classes(Namespace(model=config.model, data=config.data))
    labels, model = cell.coordinates, made.model
    if "method" in labels:
        start = "+P" if labels["method"] == "Centralized" else ""
        method = labels["method"].partition(" (")[0]
        is_of_the_paper = "paper's" in labels["method"] or "authors'" in labels["method"]
        expected = method + start + (" with memory" if model.algorithm.remember else "")
        assert model.algorithm.name.casefold() == expected.casefold()
        has_memory = method == "FedAUX" and not is_of_the_paper and name != "paper/fig4"
        assert model.algorithm.remember == has_memory
    if "alpha" in labels:
        assert made.data.alpha == float(labels["alpha"])
    assert model.participation == float(labels.get("C", model.participation))
    assert model.local.epochs == float(labels.get("E", model.local.epochs))
    assert config.trainer.max_epochs == ROUNDS.get(name, 100)
    assert made.data.num_clients == sum(model.clients.values())


def test_fedprox_has_the_best_mu_of_table_8():
    expected = {
        ("FedPROX", "0.01"): 1e-2,
        ("FedPROX", "100"): 1e-3,
        ("FedPROX+P", "0.01"): 1e-2,
        ("FedPROX+P", "100"): 1e-4,
    }
    points = [{"method": method, "alpha": alpha, "C": "0.2"} for method, alpha in expected]
    algorithms = [cell.config["model"]["algorithm"] for cell in find("paper/table1", *points)]
    assert [algorithm["init_args"]["mu"] for algorithm in algorithms] == [*expected.values()]


def test_the_second_parameter_is_mu_or_the_learning_rate_of_distillation():
    point = {"alpha": "100", "local lr": "1e-3", "mu or distillation lr": "1e-4"}
    methods = [{"method": method, **point} for method in ("FedPROX", "FedBE")]
    prox, ensemble = (cell.config["model"] for cell in find("paper/fig13", *methods))
    assert prox["algorithm"]["init_args"]["mu"] == 1e-4
    assert (prox["distillation"]["lr"], ensemble["distillation"]["lr"]) == (5e-5, 1e-4)
    assert prox["local"]["lr"] == ensemble["local"]["lr"] == 1e-3


def test_cells_with_the_same_settings_are_run_once():
    """Without noise delta has no effect; the mixed panel has the line of ResNet-8."""
    points = [
        {"scoring": "this package", "epsilon": epsilon, "delta": delta}
        for epsilon in ("no noise", "0.1")
        for delta in ("1e-5", "1e-6")
    ]
    one, same, small, smaller = (cell.key for cell in find("paper/fig5", *points))
    assert one == same
    assert small != smaller
    lines = [
        {"method": "Centralized", "clients": clients}
        for clients in ("80 ResNet-8", "20 of each", "100 ShuffleNet")
    ]
    resnet, mixed, shufflenet = (cell.key for cell in find("paper/fig3", *lines))
    assert resnet == mixed != shufflenet


def test_the_miniatures_share_cells():
    points = [{"method": m, "alpha": "100"} for m in ("FedDF", "FedDF+P", "FedAUX")]
    one, other = (find(f"paper/digits_{name}", *points) for name in ("table1", "fig3"))
    assert [cell.key for cell in one] == [cell.key for cell in other]


COMPARED = ("alone", "FedAVG+P (own)", "FedAUX (statistics; own)", "recommended")
PHOTOS = (
    "alone (photos)",
    "FedAVG+P (own; photos)",
    "FedAUX (statistics; own; photos)",
    "recommended (photos)",
)


@pytest.mark.parametrize(
    ("name", "photos"), [("silos/pacs", PHOTOS), ("silos/office", PHOTOS), ("silos/digits", ())]
)
def test_rows_of_silos_are_compared_on_all_data_and_with_their_own_statistics(name, photos):
    cells = {cell.coordinates["method"]: cell.config for cell in resolve(first_seed(name))}
    augmented = [m for m, config in cells.items() if config["model"]["local"]["augmentation"]]
    assert sorted(augmented) == sorted(photos)
    for row in (*COMPARED, *photos):
        config = cells[row]
        assert config["data"]["validation_fraction"] == 0
        is_alone = config["model"]["algorithm"]["init_args"].get("kept") == "all"
        assert is_alone == row.startswith("alone")
        assert config["model"]["batchnorm_statistics"] == ("running" if is_alone else "own")
    blends = {row: cells[row]["model"]["distillation"]["blend"] for row in COMPARED}
    assert blends["recommended"] == "vote"
    assert blends["FedAUX (statistics; own)"] == 1
    same = {**cells["recommended"]["model"], "distillation": None}
    assert {**cells["FedAUX (statistics; own)"]["model"], "distillation": None} == same
