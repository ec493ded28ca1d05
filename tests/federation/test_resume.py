"""Interrupted and resumed runs end with the weights of uninterrupted ones."""

import zipfile
from operator import attrgetter
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl import __version__
from fedaux_pl.algorithms import Centralized, FedAUX, FedDF
from fedaux_pl.engine import AtomicCheckpointIO, StageRunner
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.scoring import Logistic, MeanScoring, Privacy
from tests.federations import FewDigits, assert_same, create, fit, measured, split, weights
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
    privacy = Privacy(10.0, **options)
    return FedAUX(scoring=MeanScoring(dimensions=6), privacy=privacy, remember=False)


METHODS = {
    "whitened": (whitened, {}),
    "FedDF": (FedDF, {}),
    "centralized": (Centralized, {"clients": {"resnet8": 1}}),
    "mixed": (paper_fedaux, {"clients": {"resnet8": 1, "shufflenet": 1}}),
}


@pytest.mark.parametrize("method", ["whitened", "mixed", "centralized"])
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


def test_a_checkpoint_written_before_the_round_is_history(tmp_path, monkeypatch):
    """Lightning saves after validation by default, if validation is not done in every round.

    The resumed run has no cache, and does not pre-train again.
    """
    whole = create(FedDF(pretrained=True))
    fit(tmp_path, whole, 3, check_val_every_n_epoch=2)
    part = create(FedDF(pretrained=True))
    saving = checkpoints(tmp_path)
    options = {"enable_checkpointing": True, "check_val_every_n_epoch": 2}
    fit(tmp_path, part, 2, callbacks=[saving], **options)
    monkeypatch.delattr(H0Source, "_learn")
    rest = create(FedDF(pretrained=True))
    last = tmp_path / "last.ckpt"
    fit(tmp_path / "elsewhere", rest, 3, ckpt_path=last, check_val_every_n_epoch=2)
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


MOMENTS = {
    "before the round": "on_train_batch_start",
    "clients are trained": "pool.train",
    "students are distilled": "round_log.finish",
    "validated": "on_validation_epoch_end",
}


def save_within_rounds(federation, folder):
    """Saves at all moments of round 2, as Lightning's handler of SLURM's signal does."""

    def spy(moment, call):
        def saving(*args, **kwargs):
            result = call(*args, **kwargs)
            path = folder / f"{moment}.ckpt"
            if len(federation.history) == 1 and not path.exists():
                federation.trainer.save_checkpoint(path)
            return result

        return saving

    for moment, where in MOMENTS.items():
        owner, _, name = f"federation.{where}".rpartition(".")
        target = attrgetter(owner)(SimpleNamespace(federation=federation))
        setattr(target, name, spy(moment, getattr(target, name)))


@pytest.fixture(scope="module")
def saved_within(tmp_path_factory):
    """The folder of those checkpoints, and the federation of a whole run."""
    folder = tmp_path_factory.mktemp("within")
    torch.set_num_threads(1)
    whole, part = (create(FedAUX(), **METHODS["FedDF"][1]) for _ in range(2))
    fit(folder, whole, 3)

    class Spy(pl.Callback):
        def on_train_start(self, trainer, federation):
            save_within_rounds(federation, folder)

    fit(folder, part, 2, callbacks=[Spy()], plugins=[AtomicCheckpointIO()])
    return folder, whole


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_checkpoint_within_a_round(saved_within, moment):
    """The resumed run ends with the same weights, wherever the signal came."""
    folder, whole = saved_within
    rest = create(FedAUX(), **METHODS["FedDF"][1])
    fit(folder, rest, 3, ckpt_path=folder / f"{moment}.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


def test_a_second_fit_of_one_object_begins_anew(tmp_path):
    """A new Trainer forgets all that the last one has learned."""
    options = {"participation": 0.7}
    federation, expected = create(FedAUX(), **options), create(FedAUX(), **options)
    other = {"private": FewDigits(train=50), "auxiliary": FewDigits(auxiliary=32), "alpha": 0.1}
    data = split(3, **other)
    fit(tmp_path / "first", federation, 1, split(3))
    fit(tmp_path / "second", federation, 1, data)
    fit(tmp_path / "expected", expected, 1, data)
    assert_same(weights(federation), weights(expected))
    assert measured(federation) == measured(expected)
    for head, other in zip(federation.heads, expected.heads, strict=True):
        assert torch.equal(head.weight, other.weight)


def test_the_same_trainer_goes_on(tmp_path):
    """It has finished rounds: nothing is forgotten."""
    options = {"participation": 0.7}
    whole, parts = create(FedAUX(), **options), create(FedAUX(), **options)
    fit(tmp_path, whole, 2)
    trainer = fit(tmp_path, parts, 1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(parts, datamodule=split(3))
    assert_same(weights(parts), weights(whole))
    assert measured(parts) == measured(whole)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """64 flipped bytes in the weights, with Lightning's own CheckpointIO."""
    fit_saving(tmp_path, create(FedDF()), 1, tmp_path)
    content = bytearray((tmp_path / "last.ckpt").read_bytes())
    with zipfile.ZipFile(tmp_path / "last.ckpt") as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    middle = largest.header_offset + largest.file_size // 2
    content[middle : middle + 64] = (byte ^ 0x55 for byte in content[middle : middle + 64])
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(content)
    assert torch.load(damaged, weights_only=True)["federation"]  # torch does not see it
    message = r"damaged.ckpt cannot be read as a checkpoint \(it is damaged: the checksum of .*data"
    for plugins in ([], [AtomicCheckpointIO()]):
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path, create(FedDF()), 2, ckpt_path=damaged, plugins=plugins)
        trainer = pl.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, plugins=plugins
        )
        with pytest.raises(ConfigurationError, match=message):
            trainer.validate(create(FedDF()), datamodule=split(), ckpt_path=damaged)
    with pytest.raises(ConfigurationError, match=message):
        load_checkpoint(damaged)


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


def test_the_checkpoint_holds_the_released_heads(tmp_path):
    """Secret noise cannot be drawn again, and a second release would cost privacy again."""
    federation = create(whitened(secret=True))
    fit_saving(tmp_path / "here", federation, 1, tmp_path)
    rest = create(whitened(secret=True))
    fit(tmp_path / "there", rest, 2, ckpt_path=tmp_path / "last.ckpt")
    for one, other in zip(federation.heads, rest.heads, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert (one.client, one.release) == (other.client, other.release)
        assert one.public_map.bound == other.public_map.bound
        assert one.public_map.unit == other.public_map.unit
        assert_same(one.public_map.tensors(), other.public_map.tensors())
    fresh = create(whitened(secret=True))
    fit(tmp_path / "elsewhere", fresh, 0)
    assert not torch.equal(fresh.heads[0].weight, federation.heads[0].weight)


def test_another_machine_resumes_with_a_warning(tmp_path, monkeypatch):
    fit_saving(tmp_path / "here", create(whitened()), 1, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other machine"))
    with pytest.warns(UserWarning, match="the checkpoint comes from another machine"):
        fit(tmp_path / "there", create(whitened()), 2, ckpt_path=tmp_path / "last.ckpt")


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    """In one line that names the version, whatever is asked of it."""
    fit_saving(tmp_path, create(FedAUX()), 1, tmp_path)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del content["federation"]["format"]  # the first format had no number
    content["federation"]["settings"]["algorithm"] |= {"scoring": "logistic", "xi": 1e-8}
    torch.save(content, tmp_path / "old.ckpt")
    content["federation"]["format"] = 99
    torch.save(content, tmp_path / "new.ckpt")
    for name, message in (
        ("old", r"written by 1.0 or an earlier version \(format 1; expected 8\): start anew"),
        ("new", r"written by a later version \(format 99; expected 8\): start anew"),
    ):
        path = tmp_path / f"{name}.ckpt"
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path, create(FedAUX()), 2, ckpt_path=path)
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        with pytest.raises(ConfigurationError, match=message):
            trainer.validate(create(FedAUX()), datamodule=split(), ckpt_path=path)
        with pytest.raises(ConfigurationError, match=message):
            load_checkpoint(path)  # as predict and export do


def test_a_later_version_measures_earlier_runs(tmp_path):
    """Options and parts of checkpoints that it added are not in theirs."""
    federation = create(FedAUX())
    fit_saving(tmp_path, federation, 1, tmp_path)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    saved = content["federation"]
    assert saved["version"] == __version__
    saved["version"] = "0.99.1"
    del saved["settings"]["participation"], saved["settings"]["algorithm"]["remember"]
    del saved["settings"]["algorithm"]["feature_map"]["whitening"], saved["votes"]
    torch.save(content, tmp_path / "earlier.ckpt")
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    now, earlier = (
        trainer.validate(create(FedAUX()), datamodule=split(), ckpt_path=tmp_path / name)
        for name in ("last.ckpt", "earlier.ckpt")
    )
    assert now == earlier
    others = create(FedAUX(), {"resnet8": 2, "shufflenet": 1})
    with pytest.raises(ConfigurationError, match="made with clients"):
        trainer.validate(others, datamodule=split(), ckpt_path=tmp_path / "earlier.ckpt")
    message = f"fedaux-pl 0.99.1 began this run, and {__version__} goes on"
    with (
        pytest.raises(ConfigurationError, match="made with"),
        pytest.warns(UserWarning, match=message),
    ):
        fit(tmp_path, create(FedAUX()), 2, ckpt_path=tmp_path / "earlier.ckpt")
