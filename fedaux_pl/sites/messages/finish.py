"""The request ``finish`` and its answer: a site gets the model of the last round."""

from typing import Any

from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import Message


def write_request(round_: int, state: State) -> Message:
    """Write the request to the sites of one architecture."""
    return Message({"round": round_}, wire.write_tensors(state))


def write_answer(is_written: bool) -> tuple[dict[str, Any], bytes]:
    """Write the plain values of the answer, which has no tensors."""
    return {"written": is_written}, b""


def read_answer(answer: Message) -> bool:
    """Return whether the site has written the model."""
    return answer.fields.get("written") is True
