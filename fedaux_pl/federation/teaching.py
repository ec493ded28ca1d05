"""Teachers that are made of the clients' releases alone, in methods that send no model."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fedaux_pl.algorithms import OneRelease, Released
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.functional import fit_linear_head
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import ReleasedHead


def teach(
    preparation: Preparation,
    algorithm: OneRelease,
    heads: Sequence[ReleasedHead],
    h0: Mapping[str, nn.Module],
) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Lets the teacher label public data, and fits the heads with which students start.

    Args:
        preparation: The data and the clients.
        algorithm: The method, which makes the teacher.
        heads: What the clients have released, ordered by client.
        h0: h_0 of each architecture.

    Returns:
        The soft labels on D_distill (``distill``) and on the evaluated data (``evaluation``),
        shapes (N, C), and for each architecture a head that is fitted to those on D_distill.
    """
    context = preparation.context
    data = context.data
    inputs = {"distill": data.distill_inputs, "evaluation": data.evaluation_examples.inputs}
    features = {
        part: {name: predict_features(model, x) for name, model in h0.items()}
        for part, x in inputs.items()
    }
    labels = {}
    for part, own in features.items():
        released = Released(
            heads,
            architectures=preparation.architectures,
            sizes=data.client_sizes,
            num_negatives=len(data.negative_inputs),
            num_classes=len(data.classes),
            features=own,
            reference=features["distill"],
        )
        labels[part] = algorithm.label(released).float()
    students: dict[str, State] = {}
    for name, own_features in features["distill"].items():
        weight, bias = fit_linear_head(own_features, labels["distill"])
        students[name] = {"head.weight": weight.float(), "head.bias": bias.float()}
    return labels, context.processes.broadcast(students)
