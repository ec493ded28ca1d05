"""Files that version 1.0.0 wrote: h_0 and exported models are read, checkpoints are refused."""

import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.cli.entry import main
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import load_exported
from tests.federations import assert_same, create, fit

# The quickstart with `--model.clients '{resnet8: 2}' --model.model_options '{width: 0.02}'`: h_0 of
# `pretrain --model.pretraining.epochs 1`, and the checkpoint and the exported models of one round
# of methods/fedavg.
FILES = Path(__file__).parent / "files_1_0_0.tar.xz"
PROBABILITIES = [0.06451, 0.06726, 0.10061, 0.09935, 0.16008, 0.08480, 0.07862, 0.10283, 0.13713]
"""What version 1.0.0 predicts for the first nine classes, with the exported models."""


@pytest.fixture
def files(tmp_path):
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_h0_is_read(files):
    federation = create(FedAvg(pretrained=True), model_options={"width": 0.02})
    federation.h0 = {"resnet8": files / "h0.safetensors"}
    fit(files / "run", federation, 0)
    assert_same(federation.h0["resnet8"], load_file(files / "h0.safetensors"))


def test_exported_models_predict_the_same(files):
    model = load_exported(files / "exported")
    image = 3 * torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    with torch.no_grad():
        [probabilities] = model(image)
    torch.testing.assert_close(probabilities[:9], torch.tensor(PROBABILITIES), atol=1e-4, rtol=0)


def test_checkpoints_are_refused_in_one_line(files, capsys):
    refusal = r"written by 1\.0 or an earlier version \(format 6; expected 8\): start anew without"
    with pytest.raises(ConfigurationError, match=refusal):
        load_checkpoint(files / "last.ckpt")
    assert main(["export", str(files / "last.ckpt")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "written by 1.0 or an earlier version" in line
