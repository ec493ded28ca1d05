"""Milliseconds of a step by eager PyTorch, CUDA graphs, torch.compile and our kernels, on a GPU.

    python paper/peers/torch_compile.py

Students take steps of 128 images of 32x32 with Adam, teachers predict 5,000 images, all in bf16 and
channels last. Images and soft labels are random. Every step but an eager one is a CUDA graph.
``compiled`` is torch.compile in its default mode; its seconds to compile are printed, too.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.convolution.weight_gradients import join_weight_gradients
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs
from fedaux_pl.functional import distillation_loss
from fedaux_pl.models import create_model

NETWORKS = ("resnet8", "mobilenetv2", "shufflenet")
KINDS = ("eager", "captured", "compiled", "accelerate")
STUDENT, TEACHER = 128, 5000


def student_step(model: nn.Module) -> Callable[[], None]:
    """Return a step of distillation on static images."""
    x = torch.randint(256, (STUDENT, 3, 32, 32), dtype=torch.uint8, device="cuda")
    y = torch.rand(STUDENT, 10, device="cuda").softmax(dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(x)
        distillation_loss(logits.float(), y).backward()
        join_weight_gradients()
        optimizer.step()

    return step


def teacher_step(model: nn.Module) -> Callable[[], None]:
    """Return a prediction of static images."""
    x = torch.randint(256, (TEACHER, 3, 32, 32), dtype=torch.uint8, device="cuda")
    model.eval().requires_grad_(False)

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            model(x)

    return step


def milliseconds(step: Callable[[], None], repeats: int = 50, groups: int = 5) -> float:
    """Return the median over groups of the mean time of a step."""
    times = []
    for _ in range(groups):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / repeats * 1e3)
    return statistics.median(times)


def prepare(
    name: str, kind: str, make: Callable[[nn.Module], Callable[[], None]]
) -> tuple[Callable[[], None], float]:
    """Return a step that has run, captured unless it is eager, and the seconds until then."""
    torch.manual_seed(0)
    start = time.perf_counter()
    model: nn.Module = create_model(name, 10).cuda().to(memory_format=torch.channels_last)
    if kind == "accelerate":
        speed_up(model)
    graphs = CudaGraphs(torch.device("cuda"))
    step = make(torch.compile(model) if kind == "compiled" else model)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), graphs.step_context(0):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    replay = step if kind == "eager" else graphs.capture([step], graphs.memory_pool())

    def run(_owner: object = step) -> None:  # a graph reads the tensors that its step holds
        replay()

    run()
    torch.cuda.synchronize()
    return run, time.perf_counter() - start


def main() -> None:
    """Print a table of all networks and kinds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    torch.backends.cudnn.benchmark = True
    print("| | " + " | ".join(KINDS) + " | seconds to compile |")
    for name in parser.parse_args().networks:
        for what, make in (("student", student_step), ("teacher", teacher_step)):
            steps = {kind: prepare(name, kind, make) for kind in KINDS}
            found = " | ".join(f"{milliseconds(steps[kind][0]):.2f}" for kind in KINDS)
            print(f"| {name}, {what} | {found} | {steps['compiled'][1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
