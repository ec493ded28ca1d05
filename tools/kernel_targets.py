"""Compile every variant of our kernels for GPUs that are not here; print their shared memory.

``python -m tools.kernel_targets [FILE]`` prints a table and writes the numbers as JSON. It records
the launches of training and predictions of our networks at their real sizes, on tensors without
data, and lets Triton compile each variant for each target.
"""

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from triton import AsyncCompileMode, JITFunction
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from fedaux_pl.accelerate import context, eligibility, kernels, speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.data.views import SimCLRViews
from fedaux_pl.models import create_model

TARGETS = (80, 86, 89, 90, 100, 120)  # compute capabilities
NETWORKS = ("resnet8", "mobilenetv2", "shufflenet")
TRAINED = (32, 1024)  # images of a step: a client's; SimCLR's, whose BatchNorm has wider tiles
PREDICTED = 5000
LENGTHS = (16, 32, 64, 128)  # of texts; predictions are cut to the longest of a batch
PRECISIONS = (torch.bfloat16, torch.float32)


class Pointer(MockTensor):
    """A tensor without data, for Triton: its dtype and whether its address is aligned."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.dtype)
        self._address = tensor.storage_offset() * tensor.element_size() % 16

    def data_ptr(self) -> int:  # type: ignore[override]
        """Return the address, of which Triton takes the remainder by 16."""
        return self._address


class Targets:
    """Triton's driver of GPUs that are not there; the device is the compute capability."""

    capability = 0

    def get_current_device(self) -> int:
        """Return the capability, by which a kernel keeps its variants."""
        return self.capability

    def get_current_stream(self, _: int) -> int:
        """Return any stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return what is compiled for."""
        return GPUTarget("cuda", self.capability, 32)


def compile_variants() -> None:
    """Compile all variants for all targets, in threads."""
    targets = Targets()
    driver.set_active(targets)
    with ThreadPoolExecutor(os.cpu_count()) as threads, AsyncCompileMode(threads):

        def compile_launch(name: str, _: Any, *arguments: Any, **options: Any) -> None:
            options |= context.LAUNCH_OPTIONS
            values = [Pointer(x) if isinstance(x, Tensor) else x for x in arguments]
            for capability in TARGETS:
                targets.capability = capability
                getattr(kernels, name).run(*values, grid=None, warmup=True, **options)

        with _on_any_machine(compile_launch):
            _run_networks()


def shared_memory() -> dict[str, dict[int, list[int]]]:
    """Return the bytes of shared memory of every compiled variant, by kernel and target."""
    used: dict[str, dict[int, list[int]]] = {}
    for name, kernel in vars(kernels).items():
        if isinstance(kernel, JITFunction) and kernel.device_caches:
            caches = {target: kernel.device_caches[target][0].values() for target in TARGETS}
            used[name] = {target: [v.metadata.shared for v in caches[target]] for target in TARGETS}
    return used


@contextmanager
def _on_any_machine(launch: Any) -> Iterator[None]:
    """Let the CPU take the paths of CUDA, with tensors without data, and launch otherwise."""

    def relu(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
        return F.relu(F.conv2d(x, weight, bias, *geometry))

    def add_relu(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
        _, _, bias, *geometry = options  # residual, its factor
        return relu(x, weight, bias, *geometry)

    torch.cudnn_convolution_relu = relu  # type: ignore[assignment]
    torch.cudnn_convolution_add_relu = add_relu  # type: ignore[assignment]
    eligibility.has_kernels = lambda _: True  # type: ignore[assignment]
    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is context.launch and module is not context:
            module.launch = launch  # type: ignore[attr-defined]
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def _run_networks() -> None:
    for dtype in PRECISIONS:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            for name in NETWORKS:
                _run_images(_without_data(create_model(name, 10)))
            _run_texts(_without_data(create_model("tinybert", 4, pretrained=False)))
    speed_up(SimCLRViews())(_images(512), of_each=2)


def _run_images(model: nn.Module) -> None:
    """Train with and without sums of gradients in kernels, that is captured or not; predict."""
    for count in TRAINED:
        for fuses in (True, False):
            with using(fuses_gradient_sums=fuses):
                model.train()(_images(count)).float().sum().backward()
    with torch.no_grad():
        model.eval()(_images(PREDICTED))


def _run_texts(model: Any) -> None:
    for length in LENGTHS:
        ids = torch.empty(32, length, dtype=torch.int32)
        for rows in (0, 32 * length // 2):  # texts as they are, and packed
            with using(packed=(32, rows)):
                model.train()
                model.head(model._encode(ids)).float().sum().backward()
                model.states(ids).sum().backward()  # of language modeling
        with torch.no_grad():
            model.eval()._encode(ids)


def _images(count: int) -> Tensor:
    return torch.empty(count, 3, 32, 32, dtype=torch.uint8)


def _without_data(model: nn.Module) -> nn.Module:
    """Return the fast version of a model, whose tensors have shapes and strides only."""
    speed_up(model)
    for layer in model.modules():
        for name, tensor in layer._parameters.items():
            if tensor is not None:
                layer._parameters[name] = nn.Parameter(torch.empty_like(tensor))
        for name, tensor in layer._buffers.items():
            if tensor is not None:
                layer._buffers[name] = torch.empty_like(tensor)
    return model


def format_table(used: dict[str, dict[int, list[int]]]) -> str:
    """Return the largest shared memory in KB of each kernel and target, as Markdown."""
    heads = ["kernel", "variants", *(f"sm_{target}" for target in TARGETS)]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for name, targets in sorted(used.items()):
        largest = [f"{max(sizes) / 1024:.1f}" for sizes in targets.values()]
        count = str(len(next(iter(targets.values()))))
        lines.append(f"| {' | '.join([name.removesuffix('_kernel'), count, *largest])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    compile_variants()
    measured = shared_memory()
    print(format_table(measured))
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(measured), encoding="utf-8")
