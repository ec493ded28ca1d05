"""FedAvg, FedDF and FedAUX as a plain PyTorch loop, without Lightning and this package's engine.

The batches and their order are the same; on a CPU the weights are equal bit for bit.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaux_pl.data import TensorBatches
from fedaux_pl.federation import Federation
from fedaux_pl.federation.settings import Distillation, LocalTraining
from fedaux_pl.functional import pack_logits, unpack_logits

States = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Teacher:
    client: int
    name: str
    size: int
    state: dict[str, Tensor]


class PlainRounds:
    """The rounds of a federation as a plain loop.

    Args:
        federation: The federation after its preparation; its settings and scores are used.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.data = federation.data
        self.models = {name: copy.deepcopy(model) for name, model in federation.students.items()}
        # for each part of the data and each client: its last round and its logits then
        self.memory: dict[str, dict[int, tuple[int, Tensor]]] = {}
        is_bf16 = str(federation.trainer.precision) == "bf16-mixed"
        self.autocast = torch.autocast(federation.device.type, torch.bfloat16, enabled=is_bf16)

    def run(self, round_: int, states: States) -> dict[str, dict[str, Tensor]]:
        """Runs a round from the given states of the students, and returns their new states."""
        local, distillation = self.federation.local, self.federation.distillation
        teachers = []
        for client in self.federation.select_clients(round_):
            name = self.federation.architectures[client]
            batches = self.data.client_batches(client, local.batch_size, seed=round_)
            state = self._train(name, states[name], local, batches)
            teachers.append(_Teacher(client, name, self.data.client_sizes[client], state))
        students = {name: _average(teachers, name, state) for name, state in states.items()}
        distills, test = self.federation.algorithm.distills, self.data.evaluation_examples
        is_measured = self.federation.is_measured(round_)
        if is_measured:
            self._accuracies(students)
        if distills and is_measured:
            _accuracy(self._soft_labels(round_, teachers, test.inputs, "evaluation"), test.targets)
        if distills:
            targets = self._soft_labels(round_, teachers, self.data.distill_inputs, "distill")
            for name, state in students.items():
                batches = self.data.distill_batches(targets, distillation.batch_size, seed=round_)
                students[name] = self._train(name, state, distillation, batches)
        if is_measured:
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
        optimizer = settings.optimizer_settings.create(model.parameters())
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
        test = self.data.evaluation_examples
        return [
            _accuracy(self._predict(name, state, test.inputs), test.targets)
            for name, state in students.items()
        ]

    def _soft_labels(
        self, round_: int, teachers: Sequence[_Teacher], inputs: Tensor, part: str
    ) -> Tensor:
        """softmax(sum_i s_i f_i / sum_i s_i) over the teachers i, remembered ones included."""
        weighted, weight = torch.zeros(()), torch.zeros(())
        scores = self.federation.scores.get(part)
        memory = self.memory.setdefault(part, {})
        predictions = [
            (teacher.client, 1.0, self._predict(teacher.name, teacher.state, inputs))
            for teacher in teachers
        ]
        for client in sorted(memory.keys() - {teacher.client for teacher in teachers}):
            last_round, logits = memory[client]
            discount = self.federation.algorithm.discount ** (round_ - last_round)
            predictions.append((client, discount, logits))
        for client, discount, logits in predictions:
            score = torch.ones_like(logits[:, 0]) if scores is None else scores[client]
            weighted = weighted.to(logits) + (score * discount)[:, None] * logits
            weight = weight.to(logits) + score * discount
        if self.federation.algorithm.remember:
            own = predictions[: len(teachers)]
            memory |= {client: (round_, unpack_logits(pack_logits(f))) for client, _, f in own}
        return (weighted / weight[:, None]).softmax(dim=-1)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return F.kl_div(logits.float().log_softmax(dim=-1), targets, reduction="batchmean")
    return F.cross_entropy(logits, targets)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels).float().mean())


def _average(
    teachers: Sequence[_Teacher], name: str, before: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    own = [teacher for teacher in teachers if teacher.name == name]
    if not own:
        return dict(before)
    total_size = sum(teacher.size for teacher in own)
    average = {}
    for key, tensor in before.items():
        wide = torch.float32 if tensor.is_floating_point() else torch.float64
        total = torch.zeros_like(tensor, dtype=wide)
        for teacher in own:
            total += teacher.state[key].to(wide) * (teacher.size / total_size)
        average[key] = (total if tensor.is_floating_point() else total.round()).to(tensor.dtype)
    return average
