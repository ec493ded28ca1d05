import pytest
import torch

import fedaux_pl.engine.checkpoints
from fedaux_pl.engine import AtomicCheckpointIO


def content(path):
    return torch.load(path, weights_only=True)


def test_it_writes_and_overwrites(tmp_path):
    path = tmp_path / "deep" / "er" / "last.ckpt"
    for round_ in (1, 2):
        AtomicCheckpointIO().save_checkpoint({"round": round_, "x": torch.ones(3)}, path)
        assert content(path)["round"] == round_
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    assert AtomicCheckpointIO().load_checkpoint(path)["round"] == 2


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, error):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"round": 1}, path)

    def half(checkpoint, file):
        file.write(b"the first half of it")
        file.flush()
        raise error

    monkeypatch.setattr(fedaux_pl.engine.checkpoints.torch, "save", half)
    with pytest.raises(type(error)):
        AtomicCheckpointIO().save_checkpoint({"round": 2}, path)
    monkeypatch.undo()
    assert content(path) == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
