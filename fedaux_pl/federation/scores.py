"""What the server computes on public data from the clients' releases: scores or soft labels."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, Released
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.federation.context import Context
from fedaux_pl.functional import fit_linear_head
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import ReleasedHead, Scoring


class ServerFeatures:
    """h_0(x) on D_aux, computed once, on its parts D^- and D_distill, and on the evaluated data.

    Args:
        data: The data of the federation.
        h0: h_0 of each architecture.
        predict: Computes h_0(x) on D_aux.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        h0: Mapping[str, nn.Module],
        predict: Callable[[nn.Module, Tensor], Tensor] = predict_features,
    ) -> None:
        self.data, self.h0, self._predict = data, h0, predict
        self._auxiliary: dict[str, Tensor] = {}
        self.sent_negatives: dict[str, Tensor] = {}  # as sites got them in an earlier run

    def auxiliary(self, architecture: str) -> Tensor:
        """Return h_0(x) on D_aux, shape (N, d)."""
        if architecture not in self._auxiliary:
            inputs = self.data.auxiliary_inputs
            self._auxiliary[architecture] = self._predict(self.h0[architecture], inputs)
        return self._auxiliary[architecture]

    def negatives(self, architecture: str) -> Tensor:
        """Return h_0(x) on D^-, shape (|D^-|, d)."""
        if architecture in self.sent_negatives:
            return self.sent_negatives[architecture]
        return self.auxiliary(architecture)[self.data.auxiliary_rows["negatives"]]

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return h_0(x) on D_distill (``distill``) and on the evaluated data (``evaluation``).

        Both by architecture.
        """
        rows, evaluated = self.data.auxiliary_rows["distill"], self.data.evaluation_examples.inputs
        return {
            "distill": {name: self.auxiliary(name)[rows] for name in self.h0},
            "evaluation": {name: predict_features(h0, evaluated) for name, h0 in self.h0.items()},
        }


def score_data(
    context: Context, scoring: Scoring, heads: Sequence[ReleasedHead], features: ServerFeatures
) -> dict[str, Tensor]:
    """Return s_i(x) of every client on D_distill and on the evaluated data, shapes (n, N).

    Both are calibrated on D_distill. A client that has released nothing has scores of 0.
    """
    parts, architectures = features.parts(), context.architectures
    denoised: dict[int, ReleasedHead] = {}
    for name in features.h0:
        group = [head for head in heads if architectures[head.client] == name]
        denoised |= {head.client: head for head in scoring.shrink_heads(group)}
    scores: dict[str, Tensor] = {}
    for part, rows in parts.items():
        example = next(iter(rows.values()))
        # filled row by row: stacking the rows of many clients would take twice the memory
        scores[part] = torch.zeros(len(architectures), len(example), device=example.device)
    for head in heads:
        name = architectures[head.client]
        logits = {part: denoised[head.client].logits(rows[name]) for part, rows in parts.items()}
        for part, values in logits.items():
            scores[part][head.client] = scoring.calibration.scores(values, logits["distill"])
    return scores


def label_data(
    context: Context, algorithm: Algorithm, heads: Sequence[ReleasedHead], features: ServerFeatures
) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Let a teacher that is made of releases alone label public data, and fit students' heads.

    Returns:
        The soft labels on D_distill (``distill``) and on the evaluated data (``evaluation``),
        shapes (N, C), and for each architecture a head that is fitted to those on D_distill.
    """
    data, parts = context.data, features.parts()
    labels = {
        part: algorithm.label(
            Released(
                heads,
                architectures=context.architectures,
                sizes=data.client_sizes,
                num_negatives=len(data.negative_inputs),
                num_classes=len(data.classes),
                features=rows,
                reference=parts["distill"],
            )
        ).float()
        for part, rows in parts.items()
    }
    students: dict[str, State] = {}
    for name, rows in parts["distill"].items():
        weight, bias = fit_linear_head(rows, labels["distill"])
        students[name] = {"head.weight": weight.float(), "head.bias": bias.float()}
    return labels, context.processes.broadcast(students)
