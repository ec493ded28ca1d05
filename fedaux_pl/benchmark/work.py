"""How many samples the stages of a federation see, and how many operations these take."""

import copy
import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedaux_pl.benchmark.arithmetic import forward_flops, training_flops
from fedaux_pl.benchmark.measured import MeasuredFederation
from fedaux_pl.modules import SimCLR, create_pretraining

_SAMPLES = 8  # that operations are counted on


class Work:
    """The samples and floating-point operations of each stage.

    Args:
        federation: After its rounds.
    """

    def __init__(self, federation: MeasuredFederation) -> None:
        self.federation = federation
        self.data = federation.data
        test = self.data.test_examples
        model = next(iter(federation.students.values()))
        private = _typical(model, test.inputs)
        self._public = _typical(model, self._public_inputs())
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
        """D_distill, which differs from the private data in the lengths of its texts."""
        if self.data.auxiliary is None:
            return self.data.test_examples.inputs
        return self.data.distill_inputs

    def pretraining(self, architecture: str) -> tuple[float, float]:
        """Views (of texts there is one each) and operations of an epoch of pre-training."""
        options = dataclasses.asdict(self.federation.pretraining)
        del options["epochs"]
        batches = self.data.pretrain_batches(options.pop("batch_size"))
        model = copy.deepcopy(self.federation.students[architecture])
        module = create_pretraining(model, options)
        images = sum(len(index) for index in batches.positions(0))
        step = training_flops(module, (self._public,))
        return images * (2 if isinstance(module, SimCLR) else 1), step * images

    def of_round(self, stage: str, number: int) -> tuple[float, float]:
        """Samples and operations of a stage in a round, counted from 0.

        A sample counts once for every epoch and every model that it goes through.
        """
        if stage == "clients":
            return _totals(self._trained(number + 1), self._client)
        if stage == "distillation":
            each = self.federation.distillation.epochs * len(self.data.distill_inputs)
            return _totals(dict.fromkeys(self.federation.clients, each), self._student)
        if stage in ("evaluation", "teachers"):
            predicted = self.federation.predicted[number]
            samples = {name: count for (of, name), count in predicted.items() if of == stage}
            return _totals(samples, self._teacher if stage == "teachers" else self._forward)
        if stage == "validation":
            tested = len(self.data.test_examples.inputs)
            return _totals(dict.fromkeys(self.federation.clients, tested), self._forward)
        return math.nan, math.nan  # nothing that is counted in samples

    def _trained(self, round_: int) -> dict[str, int]:
        samples = dict.fromkeys(self.federation.clients, 0)
        sizes = self.data.client_sizes
        for client in self.federation.selected(round_):
            name = self.federation.architectures[client]
            samples[name] += self.federation.local.epochs * sizes[client]
        return samples


def _typical(model: nn.Module, inputs: Tensor) -> Tensor:
    """A few inputs that stand for all, from short to long: a text takes as much as it is long."""
    lengths: Tensor = model.lengths(inputs)  # type: ignore[operator]
    count = min(_SAMPLES, len(inputs))
    places = (2 * torch.arange(count) + 1) * len(inputs) // (2 * count)
    return inputs[lengths.argsort(stable=True)[places.to(inputs.device)]]


def _totals(samples: Mapping[str, int], flops: Mapping[str, float]) -> tuple[float, float]:
    return sum(samples.values()), sum(count * flops[name] for name, count in samples.items())
