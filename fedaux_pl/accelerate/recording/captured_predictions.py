"""Captured predictions: one architecture, with the weights of many models.

A large GPU computes faster than the host launches the kernels of a network. So the second forward
pass for each batch shape is captured. Later passes copy their weights and inputs to the memory of
the captured pass and replay it.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import ceil_div
from fedaux_pl.accelerate.eligibility import compute_dtype
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs, Replay
from fedaux_pl.accelerate.recording.replicas import network_name
from fedaux_pl.data.lazy_inputs import Inputs, read_batches
from fedaux_pl.engine.inference import prediction_batch_size, split_range
from fedaux_pl.engine.stage import Preparing
from fedaux_pl.modules.state_dicts import copy_tensors

# shape and dtype of the inputs, dtype of the computation
_PassKind = tuple[torch.Size, torch.dtype, torch.dtype]


class CapturedPredictor:
    """Predicts with any weights of one architecture, with BatchNorm's running statistics.

    Args:
        model: A model of the architecture; it is copied.
        recorder: Captures the forward passes.
        preparing: Shows the first passes and the captures.
    """

    def __init__(
        self,
        model: nn.Module,
        recorder: CudaGraphs,
        preparing: Preparing = nullcontext,
    ) -> None:
        self._preparing = preparing
        self._name = network_name(model)
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        # without BatchNorm's counters, which predictions do not use
        self._weights = {k: v for k, v in self._model.state_dict().items() if v.is_floating_point()}
        self._recorder = recorder
        self._pool = recorder.memory_pool()
        self._known: set[_PassKind] = set()  # have run once
        # the inputs and (in a list) the logits of captured passes, which have fixed addresses
        self._captured: dict[_PassKind, tuple[Tensor, list[Tensor], Replay]] = {}

    @torch.no_grad()
    def predict(self, state: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        """Compute the logits of all inputs with the given weights, shape (N, C), float32."""
        copy_tensors(self._weights.values(), [state[name] for name in self._weights])
        # batches of equal sizes, because each size is compiled, tried and captured
        most = prediction_batch_size(self._model, inputs, captured=True)
        size = ceil_div(len(inputs), ceil_div(len(inputs), most))
        ranges = split_range(len(inputs), size, equal=True)
        batches = read_batches(inputs, [slice(start, end) for start, end, _ in ranges])
        logits = []
        for x, (_, _, drop) in zip(batches, ranges, strict=True):
            logits.append(self._predict_batch(x)[drop:])
        return torch.cat(logits)

    def _predict_batch(self, x: Tensor) -> Tensor:
        kind = x.shape, x.dtype, compute_dtype(x)
        text = f"preparing {self._name}: {{}} ({len(x)} samples)"
        if kind not in self._known:  # run once as usual: kernels are compiled and selected
            with self._preparing(text.format("first prediction")):
                with self._recorder.compiling():
                    self._model(x)
                first: Tensor = self._model(x).float()
            self._known.add(kind)
            return first
        if kind not in self._captured:
            inputs = torch.empty_like(x, memory_format=torch.contiguous_format)
            logits: list[Tensor] = []

            def forward() -> None:
                logits[:] = [self._model(inputs).float()]

            with self._preparing(text.format("capturing a prediction")):
                replay = self._recorder.capture([forward], self._pool)
            self._captured[kind] = inputs, logits, replay
        inputs, logits, replay = self._captured[kind]
        inputs.copy_(x)
        replay()
        return logits[0].clone()
