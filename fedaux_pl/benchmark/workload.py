"""The samples and floating-point operations of the stages of a federation."""

import copy
import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedaux_pl.benchmark.flops import forward_flops, training_flops
from fedaux_pl.benchmark.measured_federation import MeasuredFederation
from fedaux_pl.modules import SimCLR, create_pretraining

_SAMPLES = 8  # samples on which FLOPs are counted


class Workload:
    """The samples and FLOPs of each stage.

    Args:
        federation: The federation after its rounds.
    """

    def __init__(self, federation: MeasuredFederation) -> None:
        self.federation = federation
        self.data = federation.data
        test = self.data.evaluation_examples
        model = next(iter(federation.students.values()))
        private = _representative(model, test.inputs)
        self._public = _representative(model, self._public_inputs())
        labels = torch.zeros(len(private), dtype=torch.long)
        soft = torch.ones(len(self._public), len(self.data.classes)) / len(self.data.classes)
        distillers = federation.server.distillers
        self._forward, self._teacher, self._client, self._student = {}, {}, {}, {}
        for name, model in federation.students.items():
            self._forward[name] = forward_flops(model, private)
            self._teacher[name] = forward_flops(model, self._public)
            self._client[name] = training_flops(federation.pool.modules[name], (private, labels))
            self._student[name] = training_flops(distillers[name], (self._public, soft))

    def _public_inputs(self) -> Tensor:
        """D_distill, whose texts can have other lengths than the private ones."""
        if self.data.auxiliary is None:
            return self.data.evaluation_examples.inputs
        return self.data.distill_inputs

    def pretraining(self, architecture: str) -> tuple[float, float]:
        """The views (one of each text, two of each image) and FLOPs of a pre-training epoch."""
        options = dataclasses.asdict(self.federation.pretraining)
        del options["epochs"]
        batches = self.data.pretrain_batches(options.pop("batch_size"))
        model = copy.deepcopy(self.federation.students[architecture])
        module = create_pretraining(model, options)
        samples = sum(len(index) for index in batches.positions(0))
        flops = training_flops(module, (self._public,))
        return samples * (2 if isinstance(module, SimCLR) else 1), flops * samples

    def of_round(self, stage: str, index: int) -> tuple[float, float]:
        """The samples and FLOPs of a stage in a round; NaN if the stage has none.

        A sample counts once for every epoch and every model.

        Args:
            stage: The name of the stage.
            index: The index of the round, from 0.
        """
        if stage == "clients":
            return _totals(self._trained(index + 1), self._client)
        if stage == "distillation":
            each = self.federation.distillation.epochs * len(self.data.distill_inputs)
            return _totals(dict.fromkeys(self.federation.clients, each), self._student)
        if stage in ("evaluation", "teachers"):
            predicted = self.federation.predicted[index]
            samples = {name: count for (part, name), count in predicted.items() if part == stage}
            return _totals(samples, self._teacher if stage == "teachers" else self._forward)
        if stage == "validation":
            tested = len(self.data.evaluation_examples.inputs)
            return _totals(dict.fromkeys(self.federation.clients, tested), self._forward)
        return math.nan, math.nan

    def _trained(self, round_: int) -> dict[str, int]:
        """The samples that the clients of each architecture train on in a round, from 1."""
        samples = dict.fromkeys(self.federation.clients, 0)
        sizes = self.data.client_sizes
        for client in self.federation.select_clients(round_):
            name = self.federation.architectures[client]
            samples[name] += self.federation.local.epochs * sizes[client]
        return samples


def _representative(model: nn.Module, inputs: Tensor) -> Tensor:
    """A few inputs with the lengths of all, since the FLOPs of a text grow with its length."""
    lengths: Tensor = model.lengths(inputs)  # type: ignore[operator]
    count = min(_SAMPLES, len(inputs))
    quantiles = (2 * torch.arange(count) + 1) * len(inputs) // (2 * count)
    return inputs[lengths.argsort(stable=True)[quantiles.to(inputs.device)]]


def _totals(samples: Mapping[str, int], flops: Mapping[str, float]) -> tuple[float, float]:
    return sum(samples.values()), sum(count * flops[name] for name, count in samples.items())
