"""Interrupted and resumed runs end with the weights of uninterrupted ones."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAUX, FedDF
from fedaux_pl.cli.entry import main
from fedaux_pl.cli.prediction import probabilities
from fedaux_pl.engine import AtomicCheckpointIO, StageRunner
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.scoring import Logistic, Whitened
from tests.federations import assert_same, create, fit, measured, split, weights
from tests.paper import paper_fedaux

# Lightning's warnings about every resumed run.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),
]


def checkpoints(folder, **options):
    return ModelCheckpoint(
        folder, filename="last", every_n_epochs=1, enable_version_counter=False, **options
    )


def fit_saving(root, federation, rounds, folder, ckpt_path=None, data=None, **options):
    return fit(
        root,
        federation,
        rounds,
        data,
        ckpt_path,
        callbacks=[checkpoints(folder, **options)],
        enable_checkpointing=True,
        plugins=[AtomicCheckpointIO()],
    )


def whitened(**options):
    """A method with a public map, which the checkpoint must hold."""
    return FedAUX(feature_map=Whitened(dimensions=6), epsilon=10.0, remember=False, **options)


METHODS = {
    "FedAUX": (paper_fedaux, {}),
    "whitened": (whitened, {}),
    "FedDF": (FedDF, {"optimizer_state": "carry"}),
    "mixed": (
        paper_fedaux,
        {"clients": {"resnet8": 1, "shufflenet": 1}, "optimizer_state": "carry"},
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_resumed_is_uninterrupted(tmp_path, method):
    algorithm, options = METHODS[method]
    options = {"participation": 0.7, **options}
    whole = create(algorithm(), **options)
    fit(tmp_path / "whole", whole, 3)
    fit_saving(tmp_path / "parts", create(algorithm(), **options), 1, tmp_path)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert len(content["federation"]["history"]) == 1
    rest = create(algorithm(), **options)
    # in another folder: without the cache
    trainer = fit(tmp_path / "elsewhere", rest, 3, ckpt_path=tmp_path / "last.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)
    assert trainer.global_step == 3


def test_a_resumed_run_does_not_pretrain_again(tmp_path, monkeypatch):
    whole = create(FedDF(pretrained=True))
    fit(tmp_path / "whole", whole, 2)
    fit_saving(tmp_path, create(FedDF(pretrained=True)), 1, tmp_path)

    def forbidden(*args, **kwargs):
        raise AssertionError("pre-trained again")

    monkeypatch.setattr("fedaux_pl.federation.preparation.create_pretraining", forbidden)
    rest = create(FedDF(pretrained=True))
    fit(tmp_path, rest, 2, ckpt_path=tmp_path / "last.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


def test_a_checkpoint_after_a_failure_within_a_round(tmp_path, monkeypatch):
    """Lightning then saves the state before the failed round."""
    algorithm, options = METHODS["FedDF"]
    whole = create(algorithm(), **options)
    fit(tmp_path, whole, 3)
    broken = create(algorithm(), **options)
    original = StageRunner.run_all

    def fail(runner, module, *args, **kwargs):
        if len(broken.history) == 1 and module in broken.server.distillers.values():
            raise RuntimeError("power failure")
        return original(runner, module, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StageRunner, "run_all", fail)
        with pytest.raises(RuntimeError, match="power failure"):
            fit_saving(tmp_path, broken, 3, tmp_path / "saved", save_on_exception=True)
    newest = max((tmp_path / "saved").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    rest = create(algorithm(), **options)
    fit(tmp_path, rest, 3, ckpt_path=newest)
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


def test_a_checkpoint_written_before_the_round_is_history(tmp_path):
    """Lightning saves after validation by default, if validation is not done in every round."""
    whole = create(FedDF(pretrained=True))
    fit(tmp_path, whole, 3, check_val_every_n_epoch=2)
    part = create(FedDF(pretrained=True))
    saving = checkpoints(tmp_path)
    options = {"enable_checkpointing": True, "check_val_every_n_epoch": 2}
    fit(tmp_path, part, 2, callbacks=[saving], **options)
    rest = create(FedDF(pretrained=True))
    fit(tmp_path, rest, 3, ckpt_path=tmp_path / "last.ckpt", check_val_every_n_epoch=2)
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


@pytest.mark.parametrize(
    ("changed", "data", "message"),
    [
        ({"participation": 0.5}, {}, r"participation = 1\.0, but this run asks for 0\.5"),
        ({}, {"alpha": 0.1}, r"data\.alpha = 1\.0, but this run asks for 0\.1"),
        (
            {"algorithm": paper_fedaux(epsilon=1.0)},
            {},
            r"algorithm\.epsilon = 0\.1, but this run asks for 1\.0",
        ),
        (
            {"algorithm": paper_fedaux(scorer=Logistic(regularization=1.0))},
            {},
            r"algorithm\.scorer\.regularization = 0\.1, but this run asks for 1\.0",
        ),
        (
            {"algorithm": FedDF(pretrained=True)},
            {},
            "algorithm.method = 'FedAUX', but this run asks for 'FedDF'",
        ),
        ({"seed": 3}, {}, "seed = 0, but this run asks for 3"),
    ],
)
def test_another_setting_is_refused(tmp_path_factory, changed, data, message):
    folder = tmp_path_factory.getbasetemp() / "settings"
    if not (folder / "last.ckpt").exists():
        fit_saving(folder, create(paper_fedaux()), 1, folder)
    other = create(**({"algorithm": paper_fedaux()} | changed))
    with pytest.raises(ConfigurationError, match=message):
        fit(folder, other, 2, split(3, **data), folder / "last.ckpt")


@pytest.mark.parametrize("algorithm", [paper_fedaux, whitened])
def test_the_checkpoint_holds_the_released_heads(tmp_path, algorithm):
    """Secret noise cannot be drawn again, and a second release would spend privacy budget."""
    federation = create(algorithm(secret_noise=True))
    fit_saving(tmp_path / "here", federation, 1, tmp_path)
    rest = create(algorithm(secret_noise=True))
    fit(tmp_path / "there", rest, 2, ckpt_path=tmp_path / "last.ckpt")
    for one, other in zip(federation.heads, rest.heads, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert one.release == other.release
        assert one.client == other.client
        assert (one.public_map.bound, one.public_map.unit) == (
            other.public_map.bound,
            other.public_map.unit,
        )
        assert_same(one.public_map.tensors(), other.public_map.tensors())
    fresh = create(algorithm(secret_noise=True))
    fit(tmp_path / "elsewhere", fresh, 1)
    assert not torch.equal(fresh.heads[0].weight, federation.heads[0].weight)


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    """By fit and validate; predictions need only the students."""
    fit_saving(tmp_path, create(FedAUX()), 1, tmp_path)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del content["federation"]["format"]  # the first format had no number
    content["federation"]["settings"]["algorithm"] |= {"scoring": "logistic", "xi": 1e-8}
    torch.save(content, tmp_path / "old.ckpt")
    content["federation"]["format"] = 99
    torch.save(content, tmp_path / "new.ckpt")
    for name, message in (
        ("old", r"format 1, but .* format 2, in which FedAUX takes objects .*: start anew"),
        ("new", r"format 99, but this release reads format 2: start anew"),
    ):
        path = tmp_path / f"{name}.ckpt"
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path, create(FedAUX()), 2, ckpt_path=path)
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        with pytest.raises(ConfigurationError, match=message):
            trainer.validate(create(FedAUX()), datamodule=split(), ckpt_path=path)
        inputs = split().private.test().inputs
        assert probabilities(load_checkpoint(path), inputs).shape == (len(inputs), 10)


# --- a real kill ---------------------------------------------------------------------------------

CONFIG = """
trainer:
  accelerator: cpu
  max_epochs: 8
  enable_progress_bar: false
  callbacks: []
model:
  algorithm: FedAUX
  clients: {resnet8: 3}
  participation: 0.7
  local: {batch_size: 16}
  distillation: {batch_size: 16, lr: 1.0e-3}
  pretraining: {epochs: 1, batch_size: 20}
  optimizer_state: carry
  model_options: {width: 0.125}
data:
  private: tests.federations.FewDigits
  auxiliary: tests.federations.FewDigits
  alpha: 1.0
"""


def run_command(folder, *more):
    """Runs `fedaux-pl fit` in this process."""
    torch.set_num_threads(1)
    args = [f"--config={folder / 'config.yaml'}", f"--trainer.default_root_dir={folder / 'logs'}"]
    assert main(["fit", *args, *more]) == 0


def checkpoint(folder):
    """The path of the newest checkpoint, and when it was written."""
    found = list((folder / "logs").rglob("last.ckpt"))
    assert len(found) <= 1  # a resumed run continues in its folder
    return (found[0], found[0].stat().st_mtime_ns) if found else (None, 0)


def load_newest(folder):
    return torch.load(checkpoint(folder)[0], weights_only=True)


def test_killed_at_any_moment(tmp_path):
    """SIGKILL, three times, at random moments after a new checkpoint."""
    # One server process imports the packages once, and every run is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedaux_pl.cli.verbs", "lightly.loss", "matplotlib.pyplot"])
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "config.yaml").write_text(CONFIG)
    moments = random.Random(0)
    deadline = time.monotonic() + 120
    more = []
    for _ in range(3):
        before = checkpoint(killed)
        process = context.Process(target=run_command, args=(killed, *more))
        process.start()
        while checkpoint(killed) == before:
            assert process.is_alive(), "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.join(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        more = ["--ckpt_path=last"]
    assert 3 <= len(load_newest(killed)["federation"]["history"]) < 8
    run_command(killed, *more)

    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.yaml").write_text(CONFIG)
    run_command(whole)
    results = [load_newest(folder) for folder in (killed, whole)]
    assert_same(*(result["state_dict"] for result in results))
    ours, theirs = (
        [
            {key: value for key, value in entry.items() if not key.startswith("seconds/")}
            for entry in result["federation"]["history"]
        ]
        for result in results
    )
    assert ours == theirs
    assert len(ours) == 8
    curve = next(Path(killed / "logs").rglob("curve.csv")).read_text().splitlines()
    assert len(curve) == 1 + 8
    assert not list(killed.rglob("*.part"))
