"""A kernel that fails is replaced by plain PyTorch, with the others in Triton's interpreter."""

import copy
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import CudaRunner, context, kernels, speed_up, versions
from fedaux_pl.accelerate.context import KernelError, launch
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs
from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job
from fedaux_pl.errors import FedauxError
from fedaux_pl.models import create_model
from fedaux_pl.modules import ClientModule, SimCLR
from tests.accelerate.convolution_helpers import fuse_on_cpu, use_one_program
from tests.accelerate.recorders import FakeRecorder
from tests.engine.test_stage import within

FAILED = (
    r"the kernel {} failed on cpu \(RuntimeError: PTXAS error: too much shared data\): from here "
    r"on plain PyTorch runs {}, slower"
)


class Broken:
    """A kernel that ptxas refuses."""

    def __init__(self):
        self.launches = 0

    def __getitem__(self, grid):
        def fail(*args, **options):
            self.launches += 1
            raise RuntimeError("PTXAS error:\n  too much   shared data")

        return fail


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    use_one_program(monkeypatch)
    monkeypatch.setattr(versions, "_FAILED", set())
    torch.manual_seed(0)


def break_kernel(monkeypatch, name):
    kernel = Broken()
    monkeypatch.setattr(kernels, name, kernel)
    return kernel


def images(count=4):
    return torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)


def test_predictions_are_those_of_plain_layers_with_one_warning(monkeypatch):
    plain = create_model("resnet8", 4, width=0.125).eval()
    fast = speed_up(copy.deepcopy(plain))
    kernel = break_kernel(monkeypatch, "normalize_kernel")
    x = images()
    with torch.no_grad():
        expected = plain(x)
        names = "BasicBlock, InputNormalization, ResNet8"
        with pytest.warns(UserWarning, match=FAILED.format("normalize_kernel", names)) as caught:
            assert torch.equal(fast(x), expected)
        assert torch.equal(copy.deepcopy(fast)(x), expected)
    assert len(caught) == kernel.launches == 1


def test_only_the_layer_of_the_kernel_is_plain(monkeypatch):
    fast = speed_up(SimCLR("resnet8", model_options={"width": 0.125}))
    break_kernel(monkeypatch, "views_kernel")
    with torch.no_grad(), pytest.warns(UserWarning, match="plain PyTorch runs SimCLRViews, slower"):
        fast.views(images())
    assert {version.__name__ for version in versions._FAILED} == {"FastSimCLRViews"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ClientModule, "normalize_kernel"),
        (ClientModule, "input_gradient_kernel"),
        (SimCLR, "views_kernel"),
        (SimCLR, "input_gradient_kernel"),
    ],
)
def test_a_training_starts_again_with_plain_layers(kind, name, monkeypatch):
    """Also if the kernel of a backward pass fails, after the forward pass changed statistics."""
    x = images(8)
    if kind is SimCLR:
        module = SimCLR("resnet8", model_options={"width": 0.125})
        job = Job(TensorBatches(x, batch_size=8), 1, 0)  # from the weights of the module
    else:
        module = ClientModule("resnet8", 4, model_options={"width": 0.125})
        batches = TensorBatches(x, torch.arange(8) % 4, batch_size=4)
        job = Job(batches, 1, 0, module.copy_model_state())
    fast = speed_up(copy.deepcopy(module))
    [expected] = within(lambda runner: runner.run_all(module, [job]))
    kernel = break_kernel(monkeypatch, name)

    def train(runner):
        return CudaRunner(runner.trainer, recorder=FakeRecorder()).run_all(fast, [job])

    with pytest.warns(UserWarning, match=f"the kernel {name} failed on cpu") as caught:
        [result] = within(train)
    assert sum("the kernel" in str(one.message) for one in caught) == kernel.launches == 1
    assert (result.loss, result.steps) == (pytest.approx(expected.loss, rel=1e-6), expected.steps)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[key], value, rtol=1e-6, atol=1e-6)


def test_a_training_of_others_raises_the_error(monkeypatch):
    """Without the runner, nobody can start it again."""
    model = speed_up(create_model("resnet8", 4, width=0.125)).train()
    break_kernel(monkeypatch, "normalize_kernel")
    with pytest.raises(KernelError, match="normalize_kernel"):
        model(images())


@pytest.mark.parametrize(("captures", "is_lost"), [(True, False), (False, True), (False, False)])
def test_what_cannot_be_recovered_says_so(captures, is_lost, monkeypatch):
    """An error within a capture, and one that CUDA repeats in every later call."""

    def synchronize(device):
        assert not captures  # it would end the capture
        if is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    break_kernel(monkeypatch, "gelu_kernel")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A10")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with FakeTensorMode():
        x = torch.empty(8, device="cuda")
    with pytest.raises(FedauxError, match="the kernel gelu_kernel failed on NVIDIA A10") as caught:
        launch("gelu_kernel", (1,), x, x, 8, BLOCK=8)
    is_recoverable = type(caught.value) is KernelError
    assert is_recoverable == (not captures and not is_lost)
    says_so = "this process cannot recover: start it again, .* with model.acceleration off"
    assert is_recoverable or caught.match(says_so)


@pytest.mark.parametrize("error", [FedauxError("a kernel"), torch.OutOfMemoryError("memory")])
def test_the_end_of_a_capture_does_not_hide_what_ended_it(error, monkeypatch):
    @contextmanager
    def capture(graph, **options):
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", capture)

    def step():
        raise error

    with pytest.raises(type(error), match=str(error)):
        CudaGraphs(torch.device("cpu")).capture([step], pool=None)


def test_kernels_are_compiled_in_one_way_by_every_version_of_triton(monkeypatch):
    """Triton 3.9 warns, and 3.10 computes otherwise, where fusion is left to its default."""

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: found.append((grid, args, options))

    found = []
    monkeypatch.setattr(kernels, "gelu_kernel", Kernel())
    launch("gelu_kernel", (1,), torch.empty(8), BLOCK=8)
    [(grid, (x,), options)] = found
    assert (grid, len(x), options) == ((1,), 8, {"enable_fp_fusion": True, "BLOCK": 8})


def test_long_messages_of_compilers_are_cut(monkeypatch):
    monkeypatch.setattr(context, "MAX_CAUSE", 30)
    break_kernel(monkeypatch, "gelu_kernel")
    with pytest.raises(KernelError, match=r"failed on cpu \(RuntimeError: PTXAS \[\.\.\.\]\)$"):
        launch("gelu_kernel", (1,), torch.empty(8), torch.empty(8), 8, BLOCK=8)
