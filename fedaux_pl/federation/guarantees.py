"""What a run states about privacy: the guarantee of all that leaves its clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedaux_pl.scoring import (
    UPDATES_IN_THE_CLEAR,
    Guarantee,
    Plan,
    ReleasedHead,
    Scoring,
    describe_again,
    describe_all,
    describe_privacy,
    first_step,
    tabulate_releases,
)

VotingRecords = Literal["held-out", "training"]
"""The records by which clients vote: those that they hold out, or those on which they train."""


@dataclass(frozen=True)
class Unprotected:
    """Something that leaves a client without any guarantee, besides releases and models."""

    row: str  # its name in the table of guarantees
    sentence: str  # its name after "NOT private:"


_HELD_OUT = "the validation data that clients hold out"
_VOTES: dict[VotingRecords, Unprotected] = {
    "held-out": Unprotected(
        "every round: its vote by data that it holds out",
        f"the clients' votes by {_HELD_OUT}, which choose the models",
    ),
    "training": Unprotected(
        "every round: its vote by its training data",
        "the clients' votes by their training data, which choose the models",
    ),
}


def describe_guarantees(
    scoring: Scoring | None,
    releases: Sequence[ReleasedHead],
    unprotected: Sequence[Unprotected],
    notes: Sequence[str],
    *,
    trains_clients: bool,
    makes_releases: bool,
) -> list[str]:
    """Return the guarantee of each kind of release, and what has none; a sentence each.

    Args:
        scoring: What clients release; None if they release nothing.
        releases: What clients have released so far.
        unprotected: Everything else without a guarantee, see ``list_unprotected``.
        notes: Further sentences about what leaves the clients.
        trains_clients: Whether clients train and send models.
        makes_releases: Whether this process makes the releases, so that every run costs again.
    """
    costs_again = makes_releases and any(head.release.is_private for head in releases)
    again = []
    if scoring is not None and costs_again:
        again = [describe_again(scoring.privacy)]
    if scoring is None or trains_clients:
        privacy = None if scoring is None else scoring.privacy
        lines = [*describe_privacy(releases, privacy), *again]
        lines.append(UPDATES_IN_THE_CLEAR)
        lines.append("NOT private: the training losses that clients send in every round")
    else:
        besides = "and what the lines below say" if unprotected or notes else ""
        lines = [*describe_all(releases, scoring, besides), *again]
    lines += [f"NOT private: {each.sentence}" for each in unprotected]
    return [*lines, *notes]


def tabulate_guarantees(
    scoring: Scoring | None,
    plan: Plan,
    releases: Sequence[ReleasedHead],
    unprotected: Sequence[Unprotected],
    *,
    trains_clients: bool,
) -> list[Guarantee]:
    """Return a row of the table of guarantees for each kind of message that leaves a client.

    The arguments are those of ``describe_guarantees``; ``plan`` may be empty outside of a fit.
    """
    rows = []
    if scoring is not None:
        feature_map = first_step(plan).scoring.feature_map if plan else scoring.feature_map
        rows += tabulate_releases(releases, scoring, feature_map)
    if scoring is not None and not trains_clients:
        rows.append(Guarantee("once: the number of its records", "none, it counts as public", "-"))
    else:
        rows.append(Guarantee("every round: its model and its training loss"))
    return [*rows, *(Guarantee(each.row) for each in unprotected)]


def list_unprotected(
    *,
    has_held_out_data: bool,
    voting_records: VotingRecords | None,
    measures_own_models: bool,
    remembers_teachers: bool,
    sends_more_than_models: bool,
) -> list[Unprotected]:
    """Return everything without a guarantee that leaves a client, besides releases and models.

    Args:
        has_held_out_data: Whether rounds are measured on private data that clients hold out.
        voting_records: The private records by which clients vote on the server's models; None for
            none.
        measures_own_models: Whether metrics by client depend on the client's training data.
        remembers_teachers: Whether the checkpoint holds logits of clients.
        sends_more_than_models: Whether clients send more than their models, or keep something
            between rounds.
    """
    saved = "which the server's checkpoint holds"
    unprotected = []
    if has_held_out_data:
        unprotected.append(
            Unprotected(
                "every round: its accuracy on data that it holds out",
                f"the accuracies on {_HELD_OUT}, and the choice of a round by them",
            )
        )
        if remembers_teachers:
            unprotected.append(
                Unprotected(
                    "every round: its logits on data that it holds out",
                    f"the clients' logits on {_HELD_OUT}, {saved}",
                )
            )
    if voting_records is not None:
        unprotected.append(_VOTES[voting_records])
    if measures_own_models:
        unprotected.append(
            Unprotected(
                "every round: metrics that depend on its training data",
                "the metrics by client, which depend on the training data of each",
            )
        )
    if sends_more_than_models:
        sent = "what clients send besides their weights and what they keep between rounds"
        unprotected.append(
            Unprotected("every round: more than its weights, and what it keeps", f"{sent}, {saved}")
        )
    return unprotected
