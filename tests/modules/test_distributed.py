"""SimCLR in several processes: a batch divided, the same for all, or a batch each under DDP."""

import multiprocessing
import os
import socket

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fedaux_pl.models import create_model
from fedaux_pl.modules import OptimizerSettings, SimCLR
from fedaux_pl.modules.distributed import current_processes
from fedaux_pl.processes import Processes
from tests.federations import assert_close, assert_same

IMAGES = torch.randint(
    0, 256, (12, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def small(lr=1e-3):
    torch.manual_seed(1)
    sgd = OptimizerSettings("sgd", lr)
    return SimCLR("resnet8", model_options={"width": 0.125}, optimizer=sgd)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_processes_make_their_parts_of_the_same_views(size):
    images = IMAGES[:5]
    model = create_model("resnet8", 2, width=0.125)

    def views(rank, size):
        module = SimCLR(model)
        module.share_batches(Processes(rank, size))
        assert module.is_distributed == (size > 1)
        torch.manual_seed(3)
        return module._two_views(images)

    alone = SimCLR(model)
    torch.manual_seed(3)
    expected = alone.views(images, of_each=2)
    torch.manual_seed(3)
    assert torch.equal(alone._two_views(images), expected)
    parts = [views(rank, size) for rank in range(size)]
    halves = zip(*(part.chunk(2) if len(part) else (part, part) for part in parts), strict=True)
    for half, whole in zip(halves, expected.chunk(2), strict=True):
        torch.testing.assert_close(torch.cat(half), whole, rtol=0, atol=1e-6)


def step(module, batch):
    """The loss and gradients of a training step, and the weights and statistics after it."""
    torch.manual_seed(3)
    optimizer = module.configure_optimizers()
    loss = module.training_step(batch, 0)
    loss.backward()
    module.on_after_backward()
    gradients = {name: value.grad.clone() for name, value in module.named_parameters()}
    optimizer.step()
    return {"loss": loss.detach()}, gradients, module.state_dict()


def pair(part):
    """Two fixed views of some of the images."""
    return [[IMAGES[part], IMAGES.flip(-1)[part]]]


def shared_steps(processes):
    """A batch of 5 random views and one of a fixed pair, divided among the processes."""
    module = small()
    module.share_batches(processes)
    return step(module, (IMAGES[:5],)), step(module, pair(slice(5, 12)))


def item(number):
    """Tensors of several shapes and dtypes, of which each item has other values."""
    generator = torch.Generator().manual_seed(number)
    values = torch.randn(3, 4, generator=generator)
    counter = torch.tensor(2**40 + number)
    return [values, counter, values.half().T, values > 0, values[0, 0], values[:0]]


def items_in_order(processes):
    """Items 5, 0, 3, 4, 1, of which the processes compute some; and what this one computed."""
    own, computed = [[3, 1, 5], [], [0, 4]][processes.rank], []

    def compute(number):
        computed.append(number)
        return item(number)

    like = [torch.zeros_like(tensor) for tensor in item(0)]
    stream = processes.in_order([5, 0, 3, 4, 1], own, compute, lambda _: like)
    return [(number, list(tensors)) for number, tensors in stream], computed


def work(rank, size, port, folder):
    torch.set_num_threads(1)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0}
    place |= {"LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in place.items()}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=size, strategy="ddp", max_epochs=1,
        enable_checkpointing=False, default_root_dir=folder, **quiet,
    )  # fmt: skip
    fitted = small(lr=0.1)
    trainer.fit(fitted, DataLoader(IMAGES, batch_size=3))
    assert current_processes().world_size == size
    # BatchNorm in evaluation mode, so that images meet in the loss only
    own = Processes(rank, size).part(len(IMAGES))
    loss, gradients, _ = step(small().eval(), pair(own))
    results = {
        "fitted": fitted.state_dict(),
        "metrics": dict(trainer.callback_metrics),
        "ddp": (loss, gradients),
        "shared": shared_steps(Processes(rank, size)),
        "whole": shared_steps(Processes()),
        "ordered": items_in_order(Processes(rank, size)),
    }
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of three processes computed."""
    size, folder = 3, tmp_path_factory.mktemp("processes")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedaux_pl.federation", "lightly.loss"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=work, args=(rank, size, port, folder)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def test_under_ddp_images_of_all_processes_are_compared(results):
    """The mean of the processes' gradients, which DDP computes, is that of the whole batch."""
    loss, gradients, _ = step(small().eval(), pair(slice(12)))
    for result in results:
        assert_close(result["ddp"][0], loss, rtol=1e-5, atol=1e-6)
    mean = {
        name: torch.stack([result["ddp"][1][name] for result in results]).mean(0)
        for name in gradients
    }
    assert_close(mean, gradients, rtol=1e-3, atol=1e-5)


def test_a_fit_with_ddp(results):
    start = small().state_dict()
    trained = [name for name, _ in small().named_parameters()]
    for result in results:
        assert result["metrics"]["train/loss"].isfinite()
        assert_same(
            {name: result["fitted"][name] for name in trained},
            {name: results[0]["fitted"][name] for name in trained},
        )
    assert not torch.equal(results[0]["fitted"][trained[0]], start[trained[0]])


def test_processes_that_share_a_batch_compute_the_step_of_one(results):
    alone = shared_steps(Processes())
    for result in results:
        for ours, expected in zip(result["shared"], alone, strict=True):
            for part, whole in zip(ours, expected, strict=True):
                assert_close(part, whole, rtol=1e-3, atol=1e-5)


def test_a_process_can_compute_whole_batches_where_there_are_others(results):
    """Its images are not compared with those of the others, as they are under DDP."""
    alone = shared_steps(Processes())
    for result in results:
        for ours, expected in zip(result["whole"], alone, strict=True):
            for part, whole in zip(ours, expected, strict=True):
                assert_same(part, whole)


def test_items_of_all_processes_come_in_one_order(results):
    for result, own in zip(results, ([5, 3, 1], [], [0, 4]), strict=True):
        ordered, computed = result["ordered"]
        assert computed == own
        assert [number for number, _ in ordered] == [5, 0, 3, 4, 1]
        for number, tensors in ordered:
            for ours, expected in zip(tensors, item(number), strict=True):
                assert ours.dtype == expected.dtype
                assert torch.equal(ours, expected)
