"""The server of a federation whose clients are real sites."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.cache import describe_model, load_or_compute
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.lightning import pl
from fedaux_pl.scoring import Guarantee, clients_of, first_step
from fedaux_pl.sites.adapt_algorithm import adapt_algorithm
from fedaux_pl.sites.agreement import create_agreement
from fedaux_pl.sites.answer_collector import AnswerCollector
from fedaux_pl.sites.first_results import FirstResults, first_results_folder
from fedaux_pl.sites.site_clients import SiteClients
from fedaux_pl.sites.site_releases import SiteReleases
from fedaux_pl.sites.site_requests import SiteRequests
from fedaux_pl.sites.site_settings import Sites
from fedaux_pl.sites.site_status import SiteStatus
from fedaux_pl.sites.willing_sites import WillingSites

if TYPE_CHECKING:  # it needs an optional package
    from fedaux_pl.sites.transport import ServerTransport

_UNLESS_NOISY = ("NOT private, unless it adds noise", "unlimited; with noise, by its ledger")


@contextmanager
def connect(
    federation: Federation, data: FederatedDataModule, sites: Sites, root: Path
) -> Iterator[None]:
    """Run the clients of a federation at real sites while the block runs.

    ``with connect(federation, data, sites, root): trainer.fit(federation, datamodule=data)``

    The ``data`` of the server have ``holds="public"``. The file ``sites.json`` in the folder
    ``root`` lists who is connected. Raises a ConfigurationError if settings or certificates do not
    fit, NVFlare is not installed, or the port is taken.
    """
    from fedaux_pl.sites.transport import ServerTransport  # raises if NVFlare is not installed

    attach(federation, data, sites)
    status = SiteStatus(root / "sites.json", sites.names)
    with ServerTransport(sites, status) as transport:
        federation.remote = SiteServer(federation, transport, status, sites)
        yield


def attach(federation: Federation, data: FederatedDataModule, sites: Sites) -> None:
    """Check that a federation can run over sites, name its clients and make its noise secret."""
    count = len(federation.architectures)
    if len(sites.names) != count:
        raise ConfigurationError(
            f"sites.names has {len(sites.names)} sites, but the federation has {count} clients "
            f"{federation.clients}: give each site one client"
        )
    if data.holds != "public":
        raise ConfigurationError(
            f"data.holds: got {data.holds}; expected public at the server of sites: set it there "
            "(fedaux-pl sites init writes it to sites.yaml)"
        )
    release = federation.algorithm.release
    secure = None if release is None else release.scoring.privacy.secure
    unpinned = [] if secure is None else [name for name in sites.names if name not in secure.pins]
    if unpinned:
        raise ConfigurationError(
            f"privacy.secure.pins has no pin of {', '.join(unpinned)}: let each site run fedaux-pl "
            "sites pin, and write its line to the run.yaml that all share"
        )
    federation.algorithm = adapt_algorithm(federation.algorithm, federation.local, sites.rehearsal)
    data.site_names = list(sites.names)


class SiteServer:
    """Connects a federation to its clients, which are real sites.

    Attributes:
        h0_folder: The folder of each h_0 that was first sent, with secret noise.
        privacy_notes: What else leaves the sites, a sentence each.
        unprotected: The same as rows of the table of guarantees.
    """

    h0_folder: Path | None
    privacy_notes: list[str]
    unprotected: list[Guarantee]

    def __init__(
        self,
        federation: Federation,
        transport: "ServerTransport",
        status: SiteStatus,
        sites: Sites,
    ) -> None:
        self.federation = federation
        self.transport = transport
        self.status = status
        self.sites = sites
        self.h0_folder = first_results_folder() if federation.algorithm.secret_noise else None
        self.privacy_notes = []
        self.unprotected = []
        if sites.evaluate:
            self._describe_evaluation(federation.batchnorm_statistics == "own")
        if federation.uses_vote:
            self._describe_vote()

    def _describe_evaluation(self, uses_own_statistics: bool) -> None:
        """Say which guarantee the metrics of sites have."""
        what = "if it allows it: its metrics on test data of its own"
        if uses_own_statistics:
            what += ", by BatchNorm statistics of its training data"
        self.unprotected.append(Guarantee(what, *_UNLESS_NOISY))
        self.privacy_notes.append(
            "NOT private: what sites tell about the models on test data of their own, except an "
            "accuracy with noise (fedaux-pl sites status says whose), counted by its ledger"
        )
        if uses_own_statistics:
            self.privacy_notes.append(
                "NOT private: the same metrics depend on the training records of the sites, by "
                "their own BatchNorm statistics"
            )

    def _describe_vote(self) -> None:
        """Say which guarantee the votes of sites have."""
        self.unprotected.append(
            Guarantee("if it allows it: its vote by validation or training data of its own")
        )
        self.privacy_notes.append(
            "NOT private: the votes of sites by their validation data or, if a site has none, by "
            "its training data"
        )

    def check(self, trainer: pl.Trainer) -> None:
        """Raise a ConfigurationError if a callback monitors metrics that sites can stop to send."""
        if not self.sites.evaluate:
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            monitor = str(getattr(callback, "monitor", None))
            if monitor.removeprefix("val/").startswith(("mean_client/", "worst_client/")):
                raise ConfigurationError(
                    f"trainer.callbacks: {type(callback).__name__} monitors {monitor}, but sites "
                    "send their metrics only if they allow it, are connected and have budget left: "
                    "monitor accuracy, or val/accuracy if the server has validation data, or "
                    "client_loss/mean"
                )

    def create_pool(self, clients: LocalClients) -> ClientPool:
        """Return the clients at the sites; ``clients`` would run in this process."""
        federation = self.federation
        run = clients.run
        data = federation.data
        if run.processes.world_size > 1:
            raise ConfigurationError(
                "the server of sites runs in one process: set trainer.devices and num_nodes to 1"
            )
        if self.sites.evaluate and data.evaluation_examples.clients is not None:
            raise ConfigurationError(
                "the server's test or validation data name their clients, and sites.evaluate asks "
                "the sites for the same metrics: set sites.evaluate to false, or remove the names"
            )
        agreement = create_agreement(federation.settings(), data)
        requests = SiteRequests(self.transport, self.status, self.sites, agreement)
        collector = AnswerCollector(requests, run.progress, clients.settings.lr)
        releases = SiteReleases(
            requests=requests,
            collector=collector,
            architectures=federation.architectures,
            data=data,
            first_step=first_step(federation.plan).name if federation.plan else "",
            released=lambda: clients_of(federation.heads),
            first_results=self._create_first_results(clients),
        )
        return SiteClients(
            requests=requests,
            collector=collector,
            willing=WillingSites(requests),
            releases=releases,
            architectures=federation.architectures,
            settings=clients.settings,
            head_only=federation.head_only,
            device=run.runner.device,
            needs_release=federation.algorithm.release is not None,
            metrics=federation.evaluation.metrics,
            current_states=federation.students.states,
            site_sizes=data.site_sizes,
        )

    def _create_first_results(self, clients: LocalClients) -> FirstResults | None:
        """Return what this server has first sent; None with noise from a seed."""
        federation = self.federation
        if not federation.algorithm.secret_noise:
            return None
        options = federation.students.complete_options()
        processes = clients.run.processes
        return FirstResults(
            data=federation.data,
            describe_h0=lambda name, h0: describe_model(options[name], h0, head=False),
            load_or_compute=partial(load_or_compute, processes, first_results_folder()),
        )
