"""What the figures of a run show."""

import numpy as np
import torch
from matplotlib.text import Text

from fedaux_pl.algorithms import FedAvg, FedDF
from fedaux_pl.callbacks import FederationReport, run_figures
from fedaux_pl.callbacks.client_results import as_markdown
from fedaux_pl.callbacks.figures.samples import ScoredText
from fedaux_pl.data import Examples, Glosses, InMemory, ViewSettings
from fedaux_pl.federation.settings import Pretraining
from tests.federations import create, fit, split
from tests.paper import paper_fedaux
from tests.texts import CONFIG


class FewGlosses(Glosses):
    """The first definitions of each part, short enough for a small encoder."""

    def __init__(self):
        super().__init__(max_length=12)

    def train(self):
        return self._few(super().train(), 25)

    def test(self):
        return self._few(super().test(), 25)

    def auxiliary(self):
        return super().auxiliary()[:40]

    def _few(self, examples, step):
        return Examples(examples.inputs[::step], examples.targets[::step], examples.classes)


def test_who_took_part(tmp_path):
    federation = create(FedAvg(), participation=0.4)
    fit(tmp_path, federation, 3)
    figure = dict(run_figures.client_figures(federation))["clients/participation"]
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (3, 3)  # clients, rounds
    for t in (1, 2, 3):
        assert np.flatnonzero(image[:, t - 1]).tolist() == federation.select_clients(t)


def test_given_clients_are_named(tmp_path):
    images = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8)
    part = (images, torch.tensor([0, 1] * 4))
    private = InMemory(part, part, clients=["north"] * 4 + ["south"] * 4)
    federation = create(paper_fedaux(), {"resnet8": 2})
    fit(tmp_path, federation, 0, split(2, private=private))
    drawn = dict(run_figures.prepared_figures(federation))
    for name in ("data/split", "certainty/clients", "certainty/weight_by_class"):
        texts = {text.get_text() for text in drawn[name].findobj(Text)}
        assert any(text.endswith("north") for text in texts), name


def test_each_client_has_a_confusion_matrix(tmp_path):
    images = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8)
    part, owners = (images, torch.tensor([0, 1] * 4)), ["north/1"] * 5 + ["south"] * 3
    private = InMemory(part, part, clients=owners, test_clients=owners)
    federation = create(FedAvg(), {"resnet8": 2})
    report = FederationReport()
    fit(tmp_path, federation, 1, split(2, private=private), callbacks=[report])
    drawn = dict(run_figures.result_figures(federation))
    assert list(drawn) == [f"evaluation/confusion{name}" for name in ("", "/north/1", "/south")]
    for name, samples in (("/north/1", "5 samples of the test data of north/1"), ("/south", "3 s")):
        texts = [text.get_text() for text in drawn[f"evaluation/confusion{name}"].findobj(Text)]
        assert any(text.startswith(samples) for text in texts)
    files = {path.name for path in (tmp_path / "figures").glob("evaluation_*")}
    assert files >= {"evaluation_confusion_north_1.png", "evaluation_confusion_south.png"}


def test_top_texts(tmp_path):
    """The auxiliary texts with the highest scores, as a table and as a figure."""
    data = split(2, private=FewGlosses(), auxiliary=FewGlosses())
    options = {"config": {**CONFIG, "vocab_size": 4000}, "mask_id": 4}
    federation = create(paper_fedaux(), {"encoder": 2}, model_options=options)
    fit(tmp_path, federation, 0, data)
    rows = run_figures.top_texts(federation)
    assert [row.client.split(" (")[0] for row in rows] == ["client 0"] * 3 + ["client 1"] * 3
    known = FewGlosses()._tokenize
    for client in (0, 1):
        scores, own = (
            federation.evidence.certainty["distill"][client],
            rows[3 * client : 3 * client + 3],
        )
        best = scores.sort(descending=True, stable=True)
        assert [row.score for row in own] == best.values[:3].tolist()
        assert torch.equal(known([row.text for row in own]), data.distill_inputs[best.indices[:3]])
    names = [name for name, _ in run_figures.prepared_figures(federation)]
    assert names[-1] == "certainty/top_texts"  # and no views of images
    table = as_markdown([("client", "score", "text"), ScoredText("client 0", 0.51234, "a | b")])
    assert table.splitlines()[1:] == ["| --- | --- | --- |", "| client 0 | 0.512 | a \\| b |"]


def test_the_views_are_those_of_the_settings(tmp_path):
    """With nothing to change, a view of the whole image is the image; pre-trained runs only."""
    still = ViewSettings(min_scale=1.0, flip=0.0, jitter=0.0, grayscale=0.0)
    pretraining = Pretraining(epochs=1, batch_size=20, views=still)
    federation = create(FedDF(pretrained=True), pretraining=pretraining)
    fit(tmp_path, federation, 0)
    figure = dict(run_figures.prepared_figures(federation))["pretraining/views"]
    pictures = [np.asarray(image.get_array()) for image in figure.axes[0].images]
    images = federation.data.auxiliary_inputs[:8, 0].numpy() / 255
    assert len(pictures) == 24
    for k, picture in enumerate(pictures):
        np.testing.assert_allclose(picture, images[k % 8], atol=1e-6)
    plain = create(FedDF())
    fit(tmp_path, plain, 0)
    assert "pretraining/views" not in dict(run_figures.prepared_figures(plain))


def test_figures_leave_the_random_numbers_of_a_run_alone(tmp_path):
    federation = create(paper_fedaux())
    fit(tmp_path, federation, 0)
    before = torch.get_rng_state()
    list(run_figures.prepared_figures(federation))
    assert torch.equal(torch.get_rng_state(), before)
