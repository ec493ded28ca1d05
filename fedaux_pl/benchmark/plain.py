"""A round as a plain PyTorch loop: what the arithmetic costs without Lightning and this package.

It takes the same batches in the same order and comes, on a CPU, to the same weights bit for bit,
which is how one knows that it does the same work.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Distillation, LocalTraining
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.modules.optimizers import create_optimizer

States = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Teacher:
    """A client that has trained."""

    client: int
    name: str
    size: int
    state: dict[str, Tensor]


class PlainRounds:
    """The rounds of a federation, without it.

    Args:
        federation: Says what is to be done; it has been prepared.
    """

    def __init__(self, federation: Federation) -> None:
        _check(federation)
        self.federation = federation
        self.data = federation.data
        self.models = {name: copy.deepcopy(model) for name, model in federation.students.items()}
        self.memory: dict[str, dict[int, tuple[int, Tensor]]] = {}  # by part, client: when, what
        low = {"bf16-mixed": torch.bfloat16}.get(str(federation.trainer.precision))
        self.autocast = torch.autocast(
            federation.device.type, dtype=low or torch.bfloat16, enabled=low is not None
        )

    def run(self, round_: int, states: States) -> dict[str, dict[str, Tensor]]:
        """Does what a round does, from the server's weights to those after it."""
        local, distillation = self.federation.local, self.federation.distillation
        teachers = []
        for client in self.federation.selected(round_):
            name = self.federation.architectures[client]
            batches = self.data.client_batches(client, local.batch_size, seed=round_)
            state = self._train(name, states[name], local, batches)
            teachers.append(_Teacher(client, name, self.data.client_sizes[client], state))
        students = {name: _average(teachers, name, state) for name, state in states.items()}
        self._accuracies(students)
        if self.federation.algorithm.distills:
            targets = self._teach(round_, teachers, self.data.distill_inputs, "distill")
            test = self.data.test_examples
            _share(self._teach(round_, teachers, test.inputs, "test"), test.targets)
            for name, state in students.items():
                batches = self.data.distill_batches(targets, distillation.batch_size, seed=round_)
                students[name] = self._train(name, state, distillation, batches)
        self._accuracies(students)
        return students

    def _train(
        self,
        name: str,
        state: Mapping[str, Tensor],
        settings: LocalTraining | Distillation,
        batches: TensorBatches,
    ) -> dict[str, Tensor]:
        model = self.models[name]
        model.load_state_dict(state)
        model.train()
        optimizer = create_optimizer(
            model.parameters(),
            settings.optimizer,
            settings.lr,
            settings.momentum,
            settings.weight_decay,
        )
        for epoch in range(settings.epochs):
            batches.set_epoch(epoch)
            losses = []
            for x, y in batches:
                optimizer.zero_grad()
                with self.autocast:
                    loss = _loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.detach())
            torch.stack(losses).mean().item()
        return {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}

    @torch.no_grad()
    def _predict(self, name: str, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        model = self.models[name]
        model.load_state_dict(state)
        model.eval()
        with self.autocast:
            return torch.cat([model(part).float() for part in torch.split(inputs, 2048)])

    def _accuracies(self, students: States) -> list[float]:
        test = self.data.test_examples
        return [
            _share(self._predict(name, state, test.inputs), test.targets)
            for name, state in students.items()
        ]

    def _teach(
        self, round_: int, teachers: Sequence[_Teacher], inputs: Tensor, part: str
    ) -> Tensor:
        """The soft labels, the sum of s_i f_i over that of s_i."""
        weighted, weight = torch.zeros(()), torch.zeros(())
        scores = self.federation.scores.get(part)
        memory = self.memory.setdefault(part, {})
        said = [
            (teacher.client, 1.0, self._predict(teacher.name, teacher.state, inputs))
            for teacher in teachers
        ]
        for client in sorted(memory.keys() - {client for client, *_ in said}):
            when, words = memory[client]
            said.append((client, self.federation.algorithm.discount ** (round_ - when), words))
        for client, share, logits in said:
            logits = logits.float()
            score = torch.ones_like(logits[:, 0]) if scores is None else scores[client]
            weighted = weighted.to(logits) + (score * share)[:, None] * logits
            weight = weight.to(logits) + score * share
        if self.federation.algorithm.remember:
            memory |= {client: (round_, f.half()) for client, _, f in said[: len(teachers)]}
        return (weighted / weight[:, None]).softmax(dim=-1)


def _check(federation: Federation) -> None:
    """Refuses what the loop below does not do."""
    settings = {
        "model.algorithm": (type(federation.algorithm).__name__, ("FedAvg", "FedDF", "FedAUX")),
        "model.train": (federation.train_part, ("full",)),
        "model.batchnorm": (federation.batchnorm, ("running",)),
        "model.optimizer_state": ("carry" if federation.carry else "reset", ("reset",)),
        "trainer.precision": (str(federation.trainer.precision), ("32-true", "bf16-mixed")),
    }
    for name, (value, known) in settings.items():
        if value not in known:
            raise ConfigurationError(
                f"the plain loop to compare with knows {name} {' and '.join(known)}, but it is "
                f"{value}: change it, or leave out --compare_plain"
            )


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return F.kl_div(logits.float().log_softmax(dim=-1), targets, reduction="batchmean")
    return F.cross_entropy(logits, targets)


def _share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels).float().mean())


def _average(
    teachers: Sequence[_Teacher], name: str, before: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    own = [teacher for teacher in teachers if teacher.name == name]
    if not own:
        return dict(before)
    everything = sum(teacher.size for teacher in own)
    average = {}
    for key, tensor in before.items():
        wide = torch.float32 if tensor.is_floating_point() else torch.float64
        total = torch.zeros_like(tensor, dtype=wide)
        for teacher in own:
            total += teacher.state[key].to(wide) * (teacher.size / everything)
        average[key] = (total if tensor.is_floating_point() else total.round()).to(tensor.dtype)
    return average
