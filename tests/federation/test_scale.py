"""Memory with many clients: only indices, scores, heads and counts grow with their number."""

import gc
import tracemalloc

import numpy as np
import torch

from fedaux_pl.callbacks.figures.client_weights import certainty_figure, weight_by_class_figure
from tests.federations import FewDigits, create, fit, split
from tests.paper import paper_fedaux


def tensor_bytes():
    """The bytes of all live tensors, each storage counted once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        # no subclasses: compilers keep tensors without a storage
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.layout == torch.strided:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def after_a_round(root, num_clients):
    """The federation after a round of 2 clients, and the bytes that it holds."""
    before = tensor_bytes()
    federation = create(paper_fedaux(), {"resnet8": num_clients}, participation=2 / num_clients)
    data = split(num_clients, private=FewDigits(train=400))
    trainer = fit(root, federation, 1, data)
    return trainer, federation, tensor_bytes() - before


def test_memory_grows_only_by_indices_scores_heads_and_counts(tmp_path):
    few, many = (after_a_round(tmp_path / str(count), count) for count in (4, 100))

    def may_grow(federation):
        """Scores on D_distill (32) and test data (40), heads and counts of classes."""
        heads = sum(head.weight.nbytes for head in federation.heads)
        counts = federation.data.class_counts().nbytes  # kept for the notes
        return (
            heads + counts + sum(scores.nbytes for scores in federation.evidence.certainty.values())
        )

    allowed = may_grow(many[1]) - may_grow(few[1])
    assert allowed > 96 * (32 + 40) * 4
    assert many[2] - few[2] <= allowed + 2048
    assert many[1].history[-1].keys() == few[1].history[-1].keys()


def test_figures_of_many_clients_do_not_copy_all_scores():
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.random((1000, 2000), dtype=np.float32))
    main, classes = rng.integers(0, 10, 1000), [f"class {k}" for k in range(10)]
    certainty_figure(scores[:2], main[:2], classes)  # imports and caches are not measured
    for draw in (
        lambda: certainty_figure(scores, main, classes),
        lambda: weight_by_class_figure(scores, rng.integers(0, 10, 2000), main, classes),
    ):
        tracemalloc.start()
        figure = draw()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # wide copies of the 100 clients that are shown, far from those of all (16 MB each)
        assert peak < 12e6
        assert any("the first 100 of 1,000 clients" in text.get_text() for text in figure.texts)
