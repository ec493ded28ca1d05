"""The fast version of the views: plain on the CPU, one kernel on CUDA devices."""

from itertools import cycle

import pytest
import torch

from fedaux_pl.accelerate import speed_up
from fedaux_pl.data.views import Boxes, SimCLRViews, ViewParameters, apply_views
from tests.data.test_views import SHAPES, generator, random_images


@pytest.mark.parametrize("shape", SHAPES)
def test_cpu_views_are_the_plain_ones(shape):
    images = random_images(shape)
    expected = SimCLRViews(strength=1.0)(images, generator(), of_each=2)
    found = speed_up(SimCLRViews(strength=1.0))(images, generator(), of_each=2)
    assert torch.equal(found, expected)


@pytest.mark.cuda
@pytest.mark.parametrize(("shape", "dtype"), zip(SHAPES, cycle([torch.uint8, torch.float32])))
def test_cuda_kernel_computes_the_views_of_the_cpu(shape, dtype):
    images = (random_images(shape) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    views = speed_up(SimCLRViews(strength=1.0))
    parameters = views.sample(48, *shape[1:], generator=generator())
    boxes, *rest = parameters
    on_gpu = ViewParameters(Boxes(*(x.cuda() for x in boxes)), *(x.cuda() for x in rest))
    expected = apply_views(images, parameters)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = views.transform(images.cuda(), on_gpu).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


@pytest.mark.cuda
def test_cuda_views_do_not_use_the_tensor_code(monkeypatch):
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    monkeypatch.setattr("fedaux_pl.data.views.resized_crop", lambda *args: pytest.fail("called"))
    speed_up(SimCLRViews())(images, of_each=2)


@pytest.mark.cuda
def test_cuda_graph_draws_new_views_at_each_replay():
    views = speed_up(SimCLRViews())
    images = torch.rand(64, 3, 32, 32, device="cuda")
    views(images, of_each=2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # capture fails at any synchronization
        static = views(images, of_each=2)
    graph.replay()
    first = static.clone()
    graph.replay()
    assert not torch.equal(static, first)
    assert not torch.equal(static[:64], static[64:])
    assert static.isfinite().all()
