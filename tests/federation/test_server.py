"""Rounds distill on a random part of D_distill."""

from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl.algorithms import FedAUX, FedBE, FedClassMeans, FedDF
from fedaux_pl.federation import server
from fedaux_pl.federation.settings import Distillation
from fedaux_pl.scoring import ClassStatistics, Privacy, Whitened
from tests.federations import assert_same, create, fit, measured, run, weights

EXACT = Privacy(epsilon=None)
MAP = Whitened(dimensions=8)
HALF = Distillation(batch_size=16, lr=1e-3, fraction=0.5)
TWO = {"resnet8": 2, "shufflenet": 1}


class CompareSoftLabels(pl.Callback):
    """Compares soft labels of each round with those on all of D_distill."""

    def __init__(self):
        self.subsets = []

    def on_train_start(self, trainer, federation):
        soft_labels = federation.server.soft_labels

        def compare(round_):
            self.subsets.append(round_.subset.tolist())
            everywhere = soft_labels(replace(round_, subset=None))
            found = soft_labels(round_)
            torch.testing.assert_close(found, everywhere[round_.subset])
            return found

        object.__setattr__(federation.server, "soft_labels", compare)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedDF(), {"trained": "head"}),
        (FedBE(samples=2), {}),
        (FedAUX(privacy=EXACT), {"batchnorm_statistics": "batch"}),
        (FedAUX(scorer=ClassStatistics(), feature_map=MAP, privacy=EXACT), {}),
        (FedClassMeans(feature_map=MAP, privacy=EXACT), {}),
    ],
    ids=["head", "FedBE", "batch", "statistics", "FedClassMeans"],
)
def test_soft_labels_of_a_part_are_those_of_all_samples(algorithm, options, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PERIOD", 1)
    federation = create(algorithm, TWO, distillation=HALF, **options)
    compared = CompareSoftLabels()
    fit(tmp_path, federation, 2, callbacks=[compared])
    count = len(federation.data.distill_inputs)
    first, second = compared.subsets
    assert len(first) == len(second) == round(count / 2)
    assert first != second
    assert all(f"distillation_loss/{name}" in entry for entry in federation.history for name in TWO)


def test_a_resumed_run_draws_the_same_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PERIOD", 2)
    options = {"clients": {"resnet8": 4}, "participation": 0.5, "distillation": HALF}
    whole = run(tmp_path, FedAUX(privacy=EXACT), 3, **options)
    begun = create(FedAUX(privacy=EXACT), **options)
    fit(tmp_path, begun, 2).save_checkpoint(tmp_path / "two.ckpt")
    rest = create(FedAUX(privacy=EXACT), **options)
    fit(tmp_path, rest, 3, ckpt_path=tmp_path / "two.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)
    assert all("certainty/effective_teachers" in entry for entry in whole.history)
    assert whole.history[-1]["memory/clients"] > 2


def test_the_part_changes_every_ten_rounds(tmp_path):
    federation = run(tmp_path, FedDF(), 1, distillation=HALF)
    parts = [federation.server.subset(round_).tolist() for round_ in range(1, 22)]
    assert parts == 10 * parts[:1] + 10 * parts[10:11] + parts[20:]
    assert parts[0] != parts[10] != parts[20] != parts[0]


def test_without_answers_teachers_know_the_part(tmp_path):
    options = {"clients": {"resnet8": 4}, "participation": 0.5, "distillation": HALF}
    federation = run(tmp_path, FedAUX(privacy=EXACT), 2, **options)
    found = federation.server
    averages = {"resnet8": federation.students["resnet8"].state_dict()}
    round_ = found.collect_round(11, [], [], averages, scores=federation.scores)
    assert round_.subset.tolist() == found.subset(2).tolist() != found.subset(11).tolist()
    assert found.soft_labels(round_).isfinite().all()


def test_all_samples_are_no_part(tmp_path):
    federation = run(tmp_path, FedDF(), 1)
    assert federation.server.subset(1) is None
    assert federation.distillation.plain().keys().isdisjoint({"fraction"})
