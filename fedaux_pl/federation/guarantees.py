"""What a run states about privacy: the guarantee of all that leaves its clients."""

from typing import TYPE_CHECKING

from fedaux_pl.scoring.guarantee import (
    UPDATES_IN_THE_CLEAR,
    Guarantee,
    describe_again,
    tabulate_releases,
)
from fedaux_pl.scoring.plan import first_step
from fedaux_pl.scoring.released_heads import describe_all, describe_privacy

if TYPE_CHECKING:  # a federation has guarantees
    from fedaux_pl.federation.federation_module import FederationModule


def describe_guarantees(federation: "FederationModule") -> list[str]:
    """Return the guarantee of each kind of release, and what has none; a sentence each."""
    algorithm = federation.algorithm
    scoring = algorithm.scoring
    notes = federation.role.privacy_notes
    again = []
    if scoring is not None and _costs_again(federation):
        again = [describe_again(scoring.privacy)]
    if scoring is None or algorithm.trains_clients:
        privacy = None if scoring is None else scoring.privacy
        lines = [*describe_privacy(federation.all_heads, privacy), *again]
        lines.append(UPDATES_IN_THE_CLEAR)
        lines.append("NOT private: the training losses that clients send in every round")
    else:
        has_more = federation.holds_out or notes or _uses_training_data(federation)
        besides = "and what the next line says" if has_more else ""
        lines = [*describe_all(federation.all_heads, scoring, besides), *again]
    lines += [f"NOT private: {what}" for what in _list_unprotected(federation).values()]
    return [*lines, *notes]


def tabulate_guarantees(federation: "FederationModule") -> list[Guarantee]:
    """Return the same as a table: a row for each kind of message that leaves a client."""
    algorithm = federation.algorithm
    scoring = algorithm.scoring
    rows = []
    if scoring is not None:
        feature_map = scoring.feature_map
        if federation.plan:
            feature_map = first_step(federation.plan).scoring.feature_map
        rows += tabulate_releases(federation.all_heads, scoring, feature_map)
    if scoring is not None and not algorithm.trains_clients:
        rows.append(Guarantee("once: the number of its records", "none, it counts as public", "-"))
    else:
        rows.append(Guarantee("every round: its model and its training loss"))
    rows += [Guarantee(sent) for sent in _list_unprotected(federation)]
    return [*rows, *federation.role.unprotected]


def _costs_again(federation: "FederationModule") -> bool:
    """Whether releases are private, and this process makes them."""
    data = federation.federated_data
    if data is None or data.at_sites:
        return False
    return any(head.release.is_private for head in federation.all_heads)


def _list_unprotected(federation: "FederationModule") -> dict[str, str]:
    """Return what has no guarantee besides releases and updates: a row's text, and a sentence."""
    algorithm = federation.algorithm
    saved = "which the server's checkpoint holds"
    held_out = "the validation data that clients hold out"
    unprotected = {}
    if federation.holds_out:
        unprotected["every round: its accuracy on data that it holds out"] = (
            f"the accuracies on {held_out}, and the choice of a round by them"
        )
        if algorithm.remember:
            unprotected["every round: its logits on data that it holds out"] = (
                f"the clients' logits on {held_out}, {saved}"
            )
        if federation.is_voted:
            unprotected["every round: its vote by data that it holds out"] = (
                f"the clients' votes by {held_out}, which choose the models"
            )
    if _uses_training_data(federation):
        unprotected["every round: metrics that depend on its training data"] = (
            "the metrics by client, which depend on the training data of each"
        )
    keeps = algorithm.keeps_optimizer or federation.carried.client_states
    if algorithm.overrides("client_payload") or keeps:
        sent = "what clients send besides their weights and what they keep between rounds"
        unprotected["every round: more than its weights, and what it keeps"] = f"{sent}, {saved}"
    return unprotected


def _uses_training_data(federation: "FederationModule") -> bool:
    """Whether metrics by client depend on training data; real sites say it themselves."""
    data = federation.federated_data
    if data is not None and data.at_sites:
        return False
    return federation.batchnorm_statistics == "own" or federation.local.fine_tuning > 0
