"""The option ``--client`` of verbs that read the models of a run: the model of one client."""

from dataclasses import dataclass
from pathlib import Path

from jsonargparse import Namespace
from torch import nn

from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.personal import find_client
from fedaux_pl.runs.parser import FederationCLI

# one process that sets the run up, loads its checkpoint and predicts nothing
_ATTACH = ("limit_predict_batches=0", "enable_progress_bar=false", "devices=1", "num_nodes=1")


@dataclass(frozen=True)
class ClientModel:
    """The model that a client uses itself."""

    name: str  # of the client
    architecture: str
    model: nn.Module
    reasons: list[str]  # what makes it differ from the server's
    statistics: BatchNormOption  # of the evaluation


def load_client_model(checkpoint: Path, options: Namespace) -> ClientModel | None:
    """Return the model of the client that the options name; None if they name none."""
    statistics = options.model.batchnorm_statistics
    if options.client is None:
        if statistics is not None:
            raise ConfigurationError(
                f"model.batchnorm_statistics: got {statistics!r} without a client: add --client"
            )
        return None
    config = checkpoint.absolute().parent.parent / "config.yaml"
    if not config.is_file():
        raise ConfigurationError(
            f"--client needs the data of {options.client}, which the config.yaml of the run names, "
            f"but there is no {config}: use the checkpoint in the folder of its run"
        )
    args = [f"--ckpt_path={checkpoint}", *(f"--trainer.{option}" for option in _ATTACH)]
    if statistics is not None:
        args.append(f"--model.batchnorm_statistics={statistics}")
    cli = FederationCLI("test", args)
    federation = cli.model
    data = cli.datamodule
    if data.at_sites:
        raise ConfigurationError(
            f"the data of {options.client} are at its site: `fedaux-pl site --output FOLDER` "
            "writes the model there"
        )
    cli.trainer.predict(federation, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    model = federation.client_model(options.client)
    client = find_client(options.client, data)
    return ClientModel(
        options.client,
        federation.architectures[client],
        model,
        federation.describe_client_models(client),
        federation.batchnorm_statistics,
    )
