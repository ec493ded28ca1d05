"""The files in examples/, run with small settings."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import torchvision

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_simclr_alone():
    assert 0 <= load("simclr_alone").main(epochs=1, width=0.125) <= 1


def test_simclr_with_a_network_of_torchvision(tmp_path):
    accuracy = load("simclr_torchvision").main(epochs=1, samples=64, folder=str(tmp_path))
    assert 0 <= accuracy <= 1
    weights = torch.load(tmp_path / "resnet18.pt", weights_only=True)
    expected = torchvision.models.resnet18().state_dict().keys()
    assert weights.keys() == {name for name in expected if not name.startswith("fc.")}


def test_the_student_of_distillation_alone_knows_more_than_its_teachers():
    torch.manual_seed(0)
    teachers, student = load("distillation_alone").main(epochs=3, width=0.125)
    assert max(teachers) < 0.65  # each has seen six of the ten digits
    assert student > max(teachers) + 0.05


def test_a_federation_in_python(tmp_path):
    example = load("federation_in_python")
    assert 0 <= example.main(rounds=1, epochs=1, width=0.125, root=str(tmp_path)) <= 1
    assert list(tmp_path.rglob("summary.json"))


def test_a_method_of_ones_own(tmp_path):
    assert 0 <= load("own_method").main(rounds=1, width=0.125, root=str(tmp_path)) <= 1


def test_a_scorer_of_ones_own():
    scores = load("own_scorer").main()
    assert scores.shape == (2, 1000)
    assert (scores > 0).all()


def test_the_figure_of_the_quickstart_is_drawn_from_finished_runs(tmp_path, monkeypatch):
    example = load("quickstart_figure")
    monkeypatch.setattr(example, "RUNS", tmp_path)
    for method, _ in example.METHODS.values():
        for seed in example.SEEDS:
            folder = tmp_path / f"{method}-{seed}" / "runs" / "version_0"
            folder.mkdir(parents=True)
            rows = "\n".join(f"{t},{0.1 * t + 0.01 * seed}" for t in (1, 2, 3))
            (folder / "curve.csv").write_text(f"round,accuracy\n{rows}\n")
    curves = {
        label: example.np.array([example.accuracies(method, seed) for seed in example.SEEDS])
        for label, (method, _) in example.METHODS.items()
    }
    assert curves["FedDF+P"][2] == pytest.approx([12, 22, 32])
    example.draw(curves, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_notebook_of_silos(tmp_path, monkeypatch, capsys):
    cells = json.loads((EXAMPLES / "silos.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    exec(sources[0], names)  # noqa: S102 - the notebook of the repository
    names |= {"ROUNDS": 1, "EPOCHS": 1, "WIDTH": 0.125}
    for source in sources[1:]:
        exec(source, names)  # noqa: S102
    assert list(names["table"]) == ["north", "south", "west", "east", "mean"]
    printed = capsys.readouterr().out
    state = "4 resnet8; after round 1, val/mean_client/accuracy "
    assert f"Federation(FedAUX with memory, clients: {state}" in printed
    assert "FederatedDataModule(Silos + Digits, 4 clients of 203 to 203 samples" in printed


def test_the_notebook_holds_its_figures():
    cells = json.loads((EXAMPLES / "silos.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 2
    assert all(output["output_type"] != "error" for output in outputs)
