"""Captured predictions: one architecture, with the weights of many models.

A large GPU computes faster than the host launches the kernels of a network. So the second forward
pass for each batch shape is captured. Later passes copy their weights and inputs to the memory of
the captured pass and replay it.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.eligibility import compute_dtype
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs, Replay
from fedaux_pl.accelerate.recording.replicas import network_name
from fedaux_pl.engine.inference import prediction_batch_size
from fedaux_pl.engine.stage import Preparing
from fedaux_pl.modules.state_dicts import copy_tensors


class _CapturedPass(NamedTuple):
    """A captured forward pass, with the tensors that it reads and writes."""

    inputs: Tensor
    logits: Tensor
    replay: Replay


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
        self, model: nn.Module, recorder: CudaGraphs, preparing: Preparing = nullcontext
    ) -> None:
        self._preparing, self._name = preparing, network_name(model)
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        # without BatchNorm's counters, which predictions do not use
        self._weights = {k: v for k, v in self._model.state_dict().items() if v.is_floating_point()}
        self._recorder, self._pool = recorder, recorder.memory_pool()
        self._captured: dict[_PassKind, _CapturedPass] = {}
        self._outputs: dict[_PassKind, int] = {}  # the number of logits of the kinds that have run

    @torch.no_grad()
    def predict(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Computes the logits of all inputs with the given weights, shape (N, C), float32."""
        copy_tensors(self._weights.values(), [state[name] for name in self._weights])
        size = prediction_batch_size(self._model, inputs, captured=True)
        # Batches of equal sizes, because each size is compiled, tried and captured. So the last
        # batch can begin with samples of the one before, whose logits are left out.
        count = max(1, -(-len(inputs) // size))
        size = -(-len(inputs) // count)
        starts = [i * size for i in range(count - 1)]
        logits = [self._predict_batch(inputs[start : start + size]) for start in starts]
        last = self._predict_batch(inputs[len(inputs) - size :])
        return torch.cat([*logits, last[count * size - len(inputs) :]])

    def _predict_batch(self, x: Tensor) -> Tensor:
        kind = x.shape, x.dtype, compute_dtype(x)
        text = f"preparing {self._name}: {{}} ({len(x)} samples)"
        if kind not in self._outputs:  # run once as usual: kernels are compiled and selected
            with self._preparing(text.format("first prediction")):
                with self._recorder.compiling():
                    self._model(x)
                logits: Tensor = self._model(x)
            self._outputs[kind] = logits.shape[1]
            return logits.float()
        if kind not in self._captured:
            with self._preparing(text.format("capturing a prediction")):
                self._captured[kind] = self._capture(x, self._outputs[kind])
        captured = self._captured[kind]
        captured.inputs.copy_(x)
        captured.replay()
        return captured.logits.clone()

    def _capture(self, x: Tensor, outputs: int) -> _CapturedPass:
        inputs = torch.empty_like(x, memory_format=torch.contiguous_format)
        logits = torch.empty(len(x), outputs, device=x.device)

        def forward() -> None:
            logits.copy_(self._model(inputs))

        return _CapturedPass(inputs, logits, self._recorder.capture([forward], self._pool))
