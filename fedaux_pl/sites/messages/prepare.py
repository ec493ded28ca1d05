"""The request ``prepare`` and its answer: a site is sent h_0 and releases a vector (Algorithm 1).

The tensors of the request are these; the first part of a name is followed by the name within it:

- ``h0/...``: the weights of h_0
- ``map/center``, ``map/directions``: the public feature map
- ``negatives``: h_0(x) on D^-, if the release uses it
- ``sent/...``: the classifier of a later step

If the vector goes into a secure sum, it stays at the site, and the answer has only |D_i|.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import backbone_state
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import Message, expect, join_states

MAX_NEGATIVES = 10_000_000
MAX_WEIGHT = 1e100
"""The largest weight of a classifier: logits that overflow would reveal records without noise."""

_LARGEST_NUMBER = 1e300


@dataclass(frozen=True)
class ReleaseRequest:
    """What a site is sent for its release."""

    step: Step  # with the classifier of a later step
    h0: Mapping[str, Tensor]
    public_map: PublicMap
    negatives: Tensor | None  # h_0(x) on D^-; None if the release does not use it
    classifier: Mapping[str, Tensor]  # of a later step; empty in the first one

    @property
    def num_negatives(self) -> int:
        """The number of rows of ``negatives``."""
        return 0 if self.negatives is None else len(self.negatives)

    @property
    def tensors_of_first_step(self) -> list[Tensor]:
        """All tensors that are the same in each step, in the order of the ledger's keys."""
        tensors = [*self.h0.values(), *self.public_map.tensors().values()]
        return tensors if self.negatives is None else [*tensors, self.negatives]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the ledger's keys."""
        return [*self.tensors_of_first_step, *self.classifier.values()]


def write_request(
    step: Step,
    h0: nn.Module,
    public_map: PublicMap,
    negatives: Tensor | None,
    num_classes: int,
) -> Message:
    """Write the request to the sites of one architecture; ``negatives`` are h_0(x) on D^-."""
    scorer = step.scorer
    directions = public_map.directions
    fields: dict[str, Any] = {
        "bound": public_map.bound,
        "center": public_map.center is not None,
        "directions": None if directions is None else directions.shape[1],
        "step": step.name,
    }
    tensors = join_states(
        {
            "h0": backbone_state(h0.state_dict()),
            "map": public_map.tensors(),
            "sent": scorer.tensors(),
        }
    )
    if negatives is not None:
        tensors["negatives"] = negatives
        fields["negatives"] = len(negatives)
    template = {}
    if not step.summed:
        length = scorer.vector_length(public_map.row_length(h0), num_classes)
        template = {"weight": torch.empty(length, dtype=torch.double)}
    return Message(fields, wire.write_tensors(tensors), template)


def largest_request(step: Step, student: nn.Module, num_classes: int) -> int:
    """Return the bytes of the largest request for a release in the features of a student."""
    fields = {"center": True, "directions": student.feature_dim, "negatives": MAX_NEGATIVES}
    return wire.largest_body(_template(step, student, num_classes, fields))


def read_request(
    request: Message, step: Step, student: nn.Module, num_classes: int, device: torch.device
) -> ReleaseRequest:
    """Read the request; raise a RefusalError unless it fits the step and the student."""
    template = _template(step, student, num_classes, request.fields)
    groups: dict[str, dict[str, Tensor]] = {"h0": {}, "map": {}, "sent": {}, "negatives": {}}
    for name, tensor in wire.read_tensors(request.body, template).items():
        group, _, inner_name = name.partition("/")
        groups[group][inner_name] = tensor
    classifier = groups["sent"]
    is_small = all(bool((tensor.abs() <= MAX_WEIGHT).all()) for tensor in classifier.values())
    expect(is_small, f"the classifier has weights above {MAX_WEIGHT:g}")
    bound = wire.read_number(request.fields, "bound", math.ulp(0.0), math.inf)
    has_unit_rows = step.scoring.norm_bound == "unit"
    public_map = PublicMap(**groups["map"], unit=has_unit_rows, bound=bound)
    negatives = groups["negatives"].get("")
    if negatives is not None:
        negatives = negatives.to(device)
    return ReleaseRequest(
        step.with_sent(classifier), groups["h0"], public_map, negatives, classifier
    )


def _template(step: Step, student: nn.Module, num_classes: int, fields: Mapping[str, Any]) -> State:
    """Return tensors with the names, shapes and dtypes that those of a request must have."""
    width = int(student.feature_dim)  # type: ignore[arg-type]
    row_length = width
    doubles = partial(torch.empty, dtype=torch.float64, device="meta")
    template = {f"h0/{key}": tensor for key, tensor in backbone_state(student.state_dict()).items()}
    if fields.get("center") is True:
        template["map/center"] = doubles(width)
    if fields.get("directions") is not None:
        row_length = wire.read_count(fields, "directions", width)
        template["map/directions"] = doubles(width, row_length)
    if step.scorer.uses_negatives:
        rows = wire.read_count(fields, "negatives", MAX_NEGATIVES)
        template["negatives"] = torch.empty(rows, width, device="meta")
    for name, shape in step.scorer.sent_shapes(row_length, num_classes).items():
        template[f"sent/{name}"] = doubles(*shape)
    return template


def write_answer(head: ReleasedHead, size: int) -> tuple[dict[str, Any], bytes]:
    """Write the plain values and the tensors of the answer; ``size`` is |D_i|."""
    release = head.release
    fields = {
        "size": size,
        "bound": head.public_map.bound,
        "sigma": release.sigma,
        "sensitivity": release.sensitivity,
        "simulated": release.simulated,
    }
    return fields, wire.write_tensors({"weight": head.weight})


def write_answer_without_release(size: int) -> tuple[dict[str, Any], bytes]:
    """Write the answer for a secure sum, which has only |D_i|."""
    return {"size": size}, wire.write_tensors({})


def read_answer_without_release(answer: Message) -> int:
    """Read |D_i| from the answer for a secure sum."""
    wire.read_tensors(answer.body, {})  # raises if there are tensors
    return wire.read_size(answer)


def read_answer(
    answer: Message,
    template: State,
    step: Step,
    client: int,
    public_map: PublicMap,
    num_negatives: int,
) -> tuple[ReleasedHead, int]:
    """Read the release of a client, and its |D_i|.

    Raises a RefusalError or a PrivacyError unless it is one that data and noise can give.
    """
    fields = answer.fields
    tensors = wire.read_tensors(answer.body, template)
    size = wire.read_size(answer)
    if step.scoring.norm_bound == "private":
        bound = wire.read_number(fields, "bound", public_map.bound, _LARGEST_NUMBER)
        public_map = replace(public_map, bound=bound)
    sensitivity = wire.read_number(fields, "sensitivity", 0, _LARGEST_NUMBER)
    cost = step.cost(sensitivity, fields.get("simulated") is True)
    release = replace(cost, sigma=wire.read_number(fields, "sigma", 0, _LARGEST_NUMBER))
    head = ReleasedHead(client, tensors["weight"], public_map, release)
    step.check_release(head, size, num_negatives)
    largest = step.largest_value(size, num_negatives)
    if not bool((head.weight.abs() <= largest).all()):
        raise PrivacyError("its release is larger than any data and noise can be")
    return head, size
