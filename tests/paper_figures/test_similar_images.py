import pytest
import torch

from fedaux_pl.engine.inference import predict_features
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.pretraining import create_extractor
from fedaux_pl.runs.parser import FederationCLI
from paper.similar_images import FindNeighborhoods, nearest, similar_images
from tests.callbacks.test_figures import check_legible

TINY = ["--config", "quickstart", "--model.model_options", "{width: 0.125}"]
TINY += ["--model.pretraining.epochs", "0", "--trainer.accelerator", "cpu"]
TINY += ["--trainer.enable_progress_bar", "false"]


def test_nearest_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    queries, rows = (torch.randn(n, 5, generator=generator) for n in (3, 11))
    similarities, positions = nearest(queries, rows, 4)
    for i, query in enumerate(queries):
        cosines = [float(query @ row / query.norm() / row.norm()) for row in rows]
        expected = sorted(range(11), key=lambda k, c=cosines: -c[k])[:4]
        assert positions[i].tolist() == expected
        assert similarities[i].tolist() == pytest.approx([cosines[k] for k in expected], abs=1e-6)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared federation, and what was found in it."""
    root = tmp_path_factory.mktemp("root")
    args = [*TINY, "--trainer.default_root_dir", str(root), "--trainer.logger", "false"]
    cli = FederationCLI("report", [*args, "--trainer.enable_checkpointing", "false"])
    finder = FindNeighborhoods(clients=(3, 0))
    cli.trainer.callbacks.append(finder)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    return cli.model, finder.found


def test_top_images_have_the_highest_scores(prepared):
    federation, found = prepared
    for client, one in zip([3, 0], found, strict=True):
        scores = federation.evidence.certainty["distill"][client]
        assert one.scores.tolist() == sorted(scores.tolist(), reverse=True)[:5]
        assert torch.equal(federation.data.distill_inputs[one.top], one.public)
        assert one.name == f"client {client} (mainly {[0, None, None, 4][client]})"


def test_neighbors_are_the_clients_nearest(prepared):
    federation, found = prepared
    h0 = create_extractor(federation.students["resnet8"], federation.h0["resnet8"])
    own = federation.data.client(3)
    rows = torch.nn.functional.normalize(predict_features(h0, own.inputs).double(), dim=1)
    one = found[0]
    public = torch.nn.functional.normalize(predict_features(h0, one.public).double(), dim=1)
    cosines = public @ rows.T
    torch.testing.assert_close(one.similarities, cosines.topk(4).values)
    for k in range(5):
        held = [
            int((own.inputs == image).flatten(1).all(1).nonzero()[0]) for image in one.neighbors[k]
        ]
        torch.testing.assert_close(cosines[k, held], one.similarities[k])
    everything = predict_features(h0, federation.data.distill_inputs)
    assert one.typical == pytest.approx(float(nearest(everything, rows, 1)[0].mean()), abs=1e-9)


def test_no_round_is_run(prepared):
    assert prepared[0].history == []


def test_figure_and_table(tmp_path):
    base = [
        *TINY,
        "--trainer.default_root_dir",
        str(tmp_path),
        "--model.algorithm.privacy.epsilon",
        "null",
    ]
    figure, table = similar_images(base, clients=(0, 3, 9))
    assert sum(len(axes.images) for axes in figure.figure.axes) == 3 * 5 * (1 + 4)
    assert "without noise, NOT private" in figure.caption
    assert "private, and shown for this study only" in figure.caption
    assert [row[0] for row in table.rows] == [
        "client 0 (mainly 0)", "client 3 (mainly 4)", "client 9 (mainly 7)", "mean",
    ]  # fmt: skip
    check_legible(figure.figure)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}  # no run, no figures of one
    private, _ = similar_images([*base, "--model.algorithm.privacy.epsilon", "1.0"], clients=(0,))
    assert "with the noise of (1, 1e-05)-privacy" in private.caption
    assert private.caption.endswith("a simulation.")


@pytest.mark.parametrize(
    "more", [["--config", "methods/feddf"], ["--model.algorithm.privacy.secret", "true"]]
)
def test_methods_without_scores_and_secret_noise_are_refused(tmp_path, more):
    base = [*TINY, "--trainer.default_root_dir", str(tmp_path), *more]
    with pytest.raises(ConfigurationError, match="would also spend the clients' privacy"):
        similar_images(base, clients=(0,))
