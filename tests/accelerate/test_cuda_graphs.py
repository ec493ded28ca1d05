"""Steps replayed from CUDA graphs give the results of plain steps. All tests need a GPU."""

import copy
import dataclasses
import gc
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate import CudaRunner
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs, ProbeResult
from fedaux_pl.data import TensorBatches
from fedaux_pl.data.augmentation import Augmentation
from fedaux_pl.engine import Job
from fedaux_pl.functional import balanced_weights
from fedaux_pl.models import create_model
from fedaux_pl.modules import (
    ClientModule,
    DistillationModule,
    OptimizerSettings,
    SimCLR,
)
from tests.accelerate.pairwise import pairwise
from tests.data.test_augmentation import RAND
from tests.engine.test_stage import within as within_trainer

pytestmark = pytest.mark.cuda
SIZES = (200, 197, 131, 200, 64)
INLINE = partial(CudaGraphs, overlap=False)

MOMENTUM = OptimizerSettings("sgd", momentum=0.9)
STUDENT = partial(DistillationModule, optimizer=OptimizerSettings())


class Uncaptured(CudaGraphs):
    """Calls the steps again in place of replaying a graph."""

    def capture(self, steps, pool, rngs=()):
        def replay():
            for step in steps:
                with self.step_context(len(steps) - 1):
                    step()

        return replay


class Refusing(CudaGraphs):
    """Refuses every capture, so that the runner takes plain steps."""

    def probe(self, *args):
        return ProbeResult("plain steps are wanted")


def within(work, precision="32-true"):
    """The result of a function that is called within a Trainer on the GPU."""
    return within_trainer(lambda runner: work(runner.trainer), precision, accelerator="gpu")


def jobs(start, targets="labels", sizes=SIZES, epochs=2, batch_size=32, weighted=False):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(256, (400, 3, 32, 32), generator=generator, dtype=torch.uint8).cuda()
    y = torch.randint(10, (400,), generator=generator).cuda()
    if targets == "soft":
        y = torch.randn(400, 10, generator=generator).softmax(dim=1).cuda()
    weights = (balanced_weights(y),) if weighted else ()
    made = []
    for number, size in enumerate(sizes):
        subset = torch.randperm(400, generator=generator)[:size]
        order = {"shuffle": True, "seed": number, "smallest": 2, "subset": subset}
        batches = TensorBatches(x, y, *weights, batch_size=batch_size, **order)
        made.append(Job(batches, epochs, number, start))
    return made


def results(module, work, precision="32-true", recorders=(Refusing, CudaGraphs)):
    """The results of a function that is called with (runner, module), with each recorder."""

    def run(recorder):
        one = copy.deepcopy(module)
        return within(
            lambda trainer: work(CudaRunner(trainer, recorder(torch.device("cuda", 0))), one),
            precision,
        )

    return [run(recorder) for recorder in recorders]


def train(module, precision, recorders, **options):
    """The results of the same jobs with each recorder, and the initial weights."""
    start = module.copy_model_state()
    if isinstance(module, DistillationModule):
        options = {"targets": "soft", "sizes": (400,)} | options
    elif isinstance(module, ClientModule):
        options["weighted"] = module.weighted

    def work(runner, one):
        return runner.run_all(one, jobs(start, **options))

    return results(module, work, precision, recorders), start


def distance(one, other, start):
    """The distance of two trained states, relative to their distance from the start."""

    def size(a, b):
        return sum(float((a[k].double() - b[k].double().to(a[k].device)).square().sum()) for k in a)

    return (size(one, other) / size(one, start)) ** 0.5


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def assert_agree(runs, start, tolerance=1e-3, of_losses=1e-3):
    """Compares the first run with each other one, job by job."""
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert one.steps == other.steps
            assert distance(one.state, other.state, start) < tolerance
            assert one.loss == pytest.approx(other.loss, rel=of_losses)


@pytest.mark.parametrize(
    ("create", "architecture", "precision"),
    [
        (ClientModule, "resnet8", "32-true"),
        (ClientModule, "resnet8", "bf16-mixed"),
        (ClientModule, "resnet8", "16-mixed"),
        (partial(ClientModule, mu=0.1), "resnet8", "bf16-mixed"),
        (partial(ClientModule, weighted=True), "resnet8", "32-true"),
        (partial(ClientModule, weighted=True, label_smoothing=0.1), "resnet8", "bf16-mixed"),
        (partial(ClientModule, trained="head"), "resnet8", "32-true"),
        (
            partial(ClientModule, optimizer=MOMENTUM),
            "resnet8",
            "16-mixed",
        ),
        (ClientModule, "shufflenet", "32-true"),  # its inner channels are padded
        (ClientModule, "shufflenet", "bf16-mixed"),
        (STUDENT, "resnet8", "32-true"),
    ],
)
def test_replayed_steps_agree_with_uncaptured_ones(deterministic, create, architecture, precision):
    """The same kernels on the same samples: they differ by rounding at most."""
    torch.manual_seed(0)
    module = create(create_model(architecture, 10), 10)
    assert_agree(*train(module, precision, (Uncaptured, CudaGraphs)))


@pytest.mark.parametrize(("precision", "part"), [("32-true", "full"), ("bf16-mixed", "head")])
def test_replayed_steps_read_the_corrections_of_their_job(deterministic, precision, part):
    """SCAFFOLD's clients: two rounds with other corrections, in the same replicas."""
    torch.manual_seed(0)
    options = {"trained": part, "optimizer": OptimizerSettings("sgd", lr=0.01), "corrected": True}
    module = ClientModule(create_model("resnet8", 10), 10, **options)
    start = module.copy_model_state()
    trained = {name: p for name, p in module.model.named_parameters() if p.requires_grad}

    def corrected_jobs(scale):
        generator = torch.Generator().manual_seed(2)
        return [
            dataclasses.replace(
                job,
                correction={
                    name: scale * torch.randn(p.shape, generator=generator).cuda()
                    for name, p in trained.items()
                },
            )
            for job in jobs(start)
        ]

    def work(runner, one):
        found = [runner.run_all(one, corrected_jobs(scale)) for scale in (0.1, -0.1)]
        return [{name: result.state[name] for name in trained} for result in found[0] + found[1]]

    recorders = (Uncaptured, CudaGraphs, Refusing)
    uncaptured, replayed, plain = results(module, work, precision, recorders)
    for one, other, third in zip(uncaptured, replayed, plain, strict=True):
        assert distance(one, other, start) < 1e-3
        assert distance(third, other, start) < 0.1
    for first, second in zip(replayed[: len(SIZES)], replayed[len(SIZES) :], strict=True):
        assert distance(first, second, start) > 0.5  # the sign has changed


@pytest.mark.parametrize(
    ("precision", "name", "option"),
    pairwise(["32-true", "bf16-mixed", "16-mixed"], ["sgd", "adam"], ["crop_flip", RAND]),
)
def test_replayed_steps_read_rates_and_augmented_images(deterministic, precision, name, option):
    """Two rounds with other learning rates, clipped gradients and a frozen BatchNorm."""
    torch.manual_seed(0)
    rate = {"sgd": 0.01, "adam": 0.001}[name]  # at 0.01, Adam's activations exceed float16
    optimizer = OptimizerSettings(name, lr=rate, clip_norm=0.5)
    module = ClientModule(create_model("resnet8", 10), 10, optimizer=optimizer, batchnorm="frozen")
    start, augmentation = module.copy_model_state(), Augmentation.create(option)

    def made(factor):
        found = jobs(start)
        for job in found:
            job.batches.augmentation = augmentation
        return [dataclasses.replace(job, lr=lambda n: rate * factor / (n + 1)) for job in found]

    def work(runner, one):
        return [r.state for factor in (1.0, 0.1) for r in runner.run_all(one, made(factor))]

    recorders = (Uncaptured, CudaGraphs)
    uncaptured, replayed = results(module, work, precision, recorders)
    for one, other in zip(uncaptured, replayed, strict=True):
        assert distance(one, other, start) < 1e-2
    for first, second in zip(replayed[: len(SIZES)], replayed[len(SIZES) :], strict=True):
        assert distance(first, second, start) > 0.5  # the rates have changed


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_replayed_steps_agree_with_plain_training(precision):
    """Other kernels round differently, and Adam amplifies small gradients."""
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10)
    assert_agree(*train(module, precision, (Refusing, CudaGraphs)), 0.3, 0.05)


def test_views_are_random_and_repeat_with_the_seed(deterministic):
    torch.manual_seed(0)
    module = SimCLR("resnet8")
    start = module.backbone_state()
    images = jobs(None)[0].batches.tensors[0]

    def work(runner, one):
        states = []
        for seed in (3, 3, 4):
            trained = copy.deepcopy(one)
            runner.run_all(trained, [Job(TensorBatches(images, batch_size=64), 2, seed)])
            states.append(trained.backbone_state())
            runner.forget(trained)
        return states

    recorders = (Uncaptured, INLINE, CudaGraphs)
    uncaptured, inline, replayed = results(module, work, "bf16-mixed", recorders)
    for states in (uncaptured, replayed):
        assert distance(states[0], states[1], start) < 1e-3
        assert distance(states[0], states[2], start) > 0.1
    assert distance(uncaptured[0], replayed[0], start) < 1e-3
    assert distance(inline[0], replayed[0], start) < 1e-3


class TwoPasses(ClientModule):
    """Every convolution is used twice in a step."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self(batch[0].flip(3)).square().mean()


@pytest.mark.parametrize(
    ("create", "architecture", "precision"),
    [
        (STUDENT, "resnet8", "bf16-mixed"),
        (STUDENT, "resnet8", "16-mixed"),
        (STUDENT, "shufflenet", "bf16-mixed"),
        (partial(ClientModule, mu=0.1), "resnet8", "bf16-mixed"),
        (partial(ClientModule, weighted=True), "resnet8", "32-true"),
        (partial(ClientModule, weighted=True, label_smoothing=0.1), "resnet8", "bf16-mixed"),
        (partial(ClientModule, trained="head"), "resnet8", "16-mixed"),
        (
            partial(ClientModule, optimizer=MOMENTUM),
            "resnet8",
            "bf16-mixed",
        ),
        (TwoPasses, "resnet8", "16-mixed"),
    ],
)
def test_overlapping_weight_gradients_change_nothing(
    deterministic, create, architecture, precision
):
    """The same kernels on other streams; a missing wait would give other values."""
    torch.manual_seed(0)
    module = create(create_model(architecture, 10), 10)
    assert_agree(*train(module, precision, (INLINE, CudaGraphs), sizes=(400,), epochs=4))


def test_only_a_single_replica_has_a_side_stream(monkeypatch):
    used = []

    @contextmanager
    def weight_gradients_on(side):
        used.append(side)
        yield

    monkeypatch.setattr(
        "fedaux_pl.accelerate.recording.cuda_graphs.weight_gradients_on", weight_gradients_on
    )
    graphs = CudaGraphs(torch.device("cuda", 0))
    with graphs.step_context(1):
        assert not used
    with graphs.step_context(0):
        assert used == [graphs._side_stream]


class Synchronizing(ClientModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1.0 if loss.item() > 0 else 2.0)


class NetWithDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = create_model("resnet8", 10, width=0.25)
        self.feature_dim, self.head = self.body.feature_dim, self.body.head

    def features(self, x):
        return nn.functional.dropout(self.body.features(x), 0.5, self.training)

    def forward(self, x):
        return self.head(self.features(x))


def test_each_replica_has_its_own_random_numbers(deterministic):
    """Replayed with others, a client has the dropout masks that it has alone."""
    torch.manual_seed(0)
    module = ClientModule(NetWithDropout(), 10)
    start = module.copy_model_state()

    class Single(Uncaptured):
        def probe(self, *args):
            return dataclasses.replace(super().probe(*args), max_replicas=1)

    def work(runner, one):
        made = jobs(start)
        found = runner.run_all(one, made)
        others = [dataclasses.replace(job, seed=job.seed + 7) for job in made]
        return found, runner.run_all(one, others)

    (alone, _), (together, other_seed) = results(module, work, "bf16-mixed", (Single, CudaGraphs))
    for one, other, third in zip(alone, together, other_seed, strict=True):
        assert distance(one.state, other.state, start) < 1e-2
        assert distance(one.state, third.state, start) > 0.05


def test_texts_are_captured_with_dropout():
    """In float32; ``test_bert`` has half precision."""
    torch.manual_seed(0)
    config = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64}
    module = ClientModule(
        "encoder", 4, optimizer=OptimizerSettings(lr=1e-4), model_options={"config": config}
    )
    start = module.copy_model_state()
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(5, 500, (400, 64), generator=generator, dtype=torch.int32)
    x[:, 40:] *= (torch.rand(400, 1, generator=generator) < 0.5).int()
    x, y = x.cuda(), torch.randint(4, (400,), generator=generator).cuda()
    options = {"batch_size": 32, "shuffle": True}
    made = [
        Job(TensorBatches(x, y, seed=n, subset=torch.arange(size), **options), 2, n, start)
        for n, size in enumerate(SIZES)
    ]
    runs = results(
        module, lambda runner, one: runner.run_all(one, made), recorders=(Uncaptured, CudaGraphs)
    )
    assert_agree(runs, start, 0.1, 0.02)  # sums of gradients in any order


def test_the_probe_finds_what_can_be_captured():
    batches = jobs(None)[0].batches
    batch = tuple(tensor[batches.positions(0)[0]] for tensor in batches.tensors)

    def probe(module):
        def work(trainer):
            runner = CudaRunner(trainer)
            with torch.enable_grad():
                return runner.recorder.probe(module.cuda().train(), batch, runner.step)

        return within(work)

    assert "synchroniz" in probe(Synchronizing("resnet8")).obstacle
    assert probe(ClientModule("resnet8")) == ProbeResult(max_replicas=8)
    assert probe(ClientModule(NetWithDropout())) == ProbeResult(max_replicas=8, uses_rng=True)


@pytest.mark.parametrize("name", ["moments_kernel", "input_gradient_kernel"])
def test_a_kernel_that_fails_is_replaced_by_plain_layers(deterministic, name, monkeypatch):
    """In the forward or the backward pass of the trial step; captured steps are then plain."""
    from fedaux_pl.accelerate import kernels, versions

    class Broken:
        def __getitem__(self, grid):
            raise RuntimeError("PTXAS error")

    monkeypatch.setattr(versions, "_FAILED", set())
    torch.manual_seed(0)
    module = ClientModule(create_model("resnet8", 10), 10)
    start = module.copy_model_state()

    def work(runner, one):
        return runner.run_all(one, jobs(start))

    with monkeypatch.context() as patch:
        patch.setattr(kernels, name, Broken())
        gpu = torch.cuda.get_device_name()
        with pytest.warns(UserWarning, match=rf"the kernel {name} failed on {gpu} \(RuntimeError"):
            [replayed] = results(module, work, "bf16-mixed", (CudaGraphs,))
    [plain] = results(module, work, "bf16-mixed", (Refusing,))  # its layers are plain, too
    assert_agree([plain, replayed], start, 0.3, 0.05)


def test_garbage_is_not_collected_during_a_capture():
    """A graph of an earlier module may be garbage, and its destruction would end the capture."""
    graphs = CudaGraphs(torch.device("cuda", 0))
    x, collects = torch.zeros(3, device="cuda"), []

    def step():
        collects.append(gc.isenabled())
        x.add_(1)

    replay = graphs.capture([step], graphs.memory_pool())
    replay()
    assert x.tolist() == [1, 1, 1]
    assert collects == [False]
    assert gc.isenabled()
