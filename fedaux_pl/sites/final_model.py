"""The last request: sites get the final model, and write it with what is their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedaux_pl.errors import first_line
from fedaux_pl.federation import Federation
from fedaux_pl.federation.client_models import describe_client_models
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.site_status import tell
from fedaux_pl.sites.wire import Message, RefusalError, Reply


@dataclass(frozen=True)
class FinalModel:
    """The model that a site writes."""

    architecture: str
    model: nn.Module
    reasons: list[str]  # what makes it differ from the server's
    about: Mapping[str, Any]  # the run, as the entry ``federation`` of a checkpoint


@dataclass(frozen=True)
class Output:
    """What a site does with the final model.

    Args:
        write: Writes it.
        fine_tuning: The epochs for which it is trained on the site's data before.
    """

    write: Callable[[FinalModel], None]
    fine_tuning: int = 0


def send_final_models(
    requests: SiteRequests,
    architectures: Sequence[str],
    round_: int,
    states: Mapping[str, State],
) -> None:
    """Send each site that is connected the model of its architecture."""
    bodies = {name: wire.write_tensors(states[name]) for name in {*architectures}}
    names = zip(requests.sites.names, architectures, strict=True)
    questions = {site: Message({"round": round_}, bodies[name]) for site, name in names}

    def read(_: str, answer: Message) -> bool:
        return answer.fields.get("written") is True

    for name, answer in requests.ask("finish", questions, read):
        if isinstance(answer, RefusalError):
            tell(f"{name} has no final model: {first_line(answer)}")
        elif answer:
            tell(f"{name} has written the final model")


def write_final_model(
    federation: Federation,
    clients: LocalClients,
    output: Output | None,
    client: int,
    request: Message,
) -> Reply:
    """Write the model of a request, fine-tuned and with own statistics if the site wants them."""
    if output is None:
        return {"written": False}, b"", "nothing: the final model is written with --output only"
    name = federation.architectures[client]
    student = federation.students[name]
    round_ = wire.read_count(request.fields, "round")
    device = federation.trainer.strategy.root_device
    received = wire.read_tensors(request.body, student.state_dict(), device)
    local = replace(federation.local, fine_tuning=output.fine_tuning)
    clients.settings = local
    [state] = clients.own_models(round_, [client], {name: received}).values()
    student.load_state_dict(state)
    reasons = describe_client_models(
        federation.algorithm, local, federation.batchnorm_statistics, [student]
    )
    checkpoint: dict[str, Any] = {}
    federation.on_save_checkpoint(checkpoint)
    left = "what has left this site is in its journal and its ledger"
    about = checkpoint["federation"] | {"round": {"round": round_}, "privacy": [left]}
    output.write(FinalModel(name, student, reasons, about))
    return {"written": True}, b"", "that it has written the final model: nothing about its data"
