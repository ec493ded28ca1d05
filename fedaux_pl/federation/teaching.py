"""Teachers that are made of the clients' releases alone, in methods that send no model."""

from collections.abc import Sequence

from torch import Tensor

from fedaux_pl.algorithms import OneRelease, Released
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.server_features import ServerFeatures
from fedaux_pl.functional import fit_linear_head
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import ReleasedHead


def teach(
    preparation: Preparation,
    algorithm: OneRelease,
    heads: Sequence[ReleasedHead],
    features: ServerFeatures,
) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Lets the teacher label public data, and fits the heads with which students start.

    Args:
        preparation: The data and the clients.
        algorithm: The method, which makes the teacher.
        heads: What the clients have released, ordered by client.
        features: The features of public data.

    Returns:
        The soft labels on D_distill (``distill``) and on the evaluated data (``evaluation``),
        shapes (N, C), and for each architecture a head that is fitted to those on D_distill.
    """
    context = preparation.context
    data = context.data
    parts = {name: features.parts(name) for name in features.h0}
    distill = {name: own["distill"] for name, own in parts.items()}
    labels = {}
    for part in ("distill", "evaluation"):
        released = Released(
            heads,
            architectures=preparation.architectures,
            sizes=data.client_sizes,
            num_negatives=len(data.negative_inputs),
            num_classes=len(data.classes),
            features={name: own[part] for name, own in parts.items()},
            reference=distill,
        )
        labels[part] = algorithm.label(released).float()
    students: dict[str, State] = {}
    for name, own_features in distill.items():
        weight, bias = fit_linear_head(own_features, labels["distill"])
        students[name] = {"head.weight": weight.float(), "head.bias": bias.float()}
    return labels, context.processes.broadcast(students)
