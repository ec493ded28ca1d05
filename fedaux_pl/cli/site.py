"""The verb of a real site, ``site``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedaux_pl.cli.client_option import ClientModel
from fedaux_pl.cli.export import is_used, write_client_model
from fedaux_pl.errors import ConfigurationError, is_count
from fedaux_pl.lightning import LightningArgumentParser
from fedaux_pl.models.export_config import CONFIG
from fedaux_pl.runs.parser import FederationCLI
from fedaux_pl.sites import Limits, Site
from fedaux_pl.sites.final_model import FinalModel, Output
from fedaux_pl.sites.kit import check_secrecy


@dataclass(frozen=True)
class SiteOptions:
    """What a site needs besides the options of ``fit``.

    Args:
        server: The server, HOST:PORT; the host as in its certificate.
        certificates: The folder that nvflare provision has written for this site.
        max_bytes: The largest message that is accepted, in bytes.
        output: The folder to write the final model to, with what is this site's own; or null.
        output_fine_tuning: The epochs for which it is trained on the data of this site before; 0
            for none.
    """

    server: str
    certificates: Path
    max_bytes: int = 2**32
    output: Path | None = None
    output_fine_tuning: int = 0


class SiteCLI(FederationCLI):
    """The parser of ``site``: that of ``fit`` with the server and the limits of the site."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options and the limits of the site."""
        super().add_arguments_to_parser(parser)
        parser.add_class_arguments(SiteOptions)
        parser.add_class_arguments(Limits)

    def before_instantiate_classes(self) -> None:
        """A site has its private data alone, and writes no logs and checkpoints."""
        self.config.data.holds = "private"
        for name in ("logger", "enable_checkpointing", "enable_progress_bar"):
            self.config.trainer[name] = False
        super().before_instantiate_classes()
        self.trainer_defaults["callbacks"] = []


def site_output(folder: Path | None, fine_tuning: int, name: str) -> Output | None:
    """Return what the site ``name`` does with the final model; raise if the folder is used."""
    if not is_count(fine_tuning, 0) or (fine_tuning and folder is None):
        raise ConfigurationError(
            f"output_fine_tuning: got {fine_tuning}; expected epochs from 0 on, with --output"
        )
    if folder is None:
        return None
    is_replaced = (folder / CONFIG).is_file()  # the model of an earlier run
    if is_used(folder) and not is_replaced:
        raise ConfigurationError(f"{folder.absolute()} is not empty: give --output another folder")

    def write(final: FinalModel) -> None:
        statistics = final.about["settings"]["batchnorm_statistics"]
        client = ClientModel(name, final.architecture, final.model, final.reasons, statistics)
        write_client_model(folder, client, final.about)

    return Output(write, fine_tuning)


def site(args: Sequence[str]) -> SiteCLI:
    """Answers the server until it is ended by SIGTERM or Ctrl-C."""
    from fedaux_pl.sites import certificates, transport  # raises if NVFlare is not installed

    cli = SiteCLI("site", args)
    options = cli.config_init
    limits = Limits(**{name: options[name] for name in Limits.__dataclass_fields__})
    host, _, port = options.server.rpartition(":")
    is_address = host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16
    if not is_address:
        raise ConfigurationError(f"server: got {options.server}; expected HOST:PORT")
    kit = options.certificates
    name = certificates.certificate_name(kit)
    check_secrecy(kit, "client")
    serve = partial(transport.serve, name, options.server, kit, options.max_bytes)
    output = site_output(options.output, options.output_fine_tuning, name)
    program = Site(cli.model, limits, serve, name, options.server, output)
    try:
        cli.trainer.fit(program.federation, datamodule=cli.datamodule)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error  # a setting that does not fit the data
    return cli
