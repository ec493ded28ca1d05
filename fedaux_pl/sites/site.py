"""A site: it has the configuration of the server and the private data of one client."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fedaux_pl.data.fingerprints import key_id, keyed_fingerprint, machine_key
from fedaux_pl.engine import SeedPurpose
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.federation.checks import check_without_rounds
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.personal import describe_client_models
from fedaux_pl.federation.pretraining import create_extractor
from fedaux_pl.scoring import Privacy
from fedaux_pl.sites.adapt_algorithm import adapt_algorithm
from fedaux_pl.sites.agreement import create_agreement
from fedaux_pl.sites.budget import Budget
from fedaux_pl.sites.dispatcher import Dispatcher
from fedaux_pl.sites.final_model import Output
from fedaux_pl.sites.handlers.evaluate import Evaluate
from fedaux_pl.sites.handlers.evaluate_with_noise import EvaluateWithNoise, check_evaluate_epsilon
from fedaux_pl.sites.handlers.finish import Finish
from fedaux_pl.sites.handlers.handler import Handler
from fedaux_pl.sites.handlers.prepare import Prepare
from fedaux_pl.sites.handlers.refuse import Refuse
from fedaux_pl.sites.handlers.train import Train
from fedaux_pl.sites.handlers.vote import Vote
from fedaux_pl.sites.journal import Journal
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.new_pixels import check_pixels
from fedaux_pl.sites.own_examples import adapt_own_examples
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.site_settings import Limits
from fedaux_pl.sites.wire import Message

Serve = Callable[[Callable[[Message], Message], int], None]
"""Serves requests until the site ends: it gets ``answer`` and the bytes of the largest request."""


class SiteFederation(Federation):
    """The federation of a site, which answers requests instead of running rounds."""

    site: "Site"

    def setup(self, stage: str) -> None:
        """Set up the federation, and refuse a smallest number of steps or rounds."""
        check_without_rounds(self.trainer)
        super().setup(stage)

    def on_fit_start(self) -> None:
        """Answer requests until the site is ended."""
        self.check_continued()
        self.start()
        self.site.run()
        self.trainer.should_stop = True


class Site:
    """Answers the server's requests, with the private data of one client.

    ``trainer.fit(site.federation, datamodule=data)`` runs it, with the Trainer's device and
    precision.

    Args:
        federation: The federation of the server's configuration, with the data of this site.
        limits: What the owner of the site allows.
        serve: Serves requests until the site ends, as ``transport.serve`` does.
        name: The site's name, to which its signing key for secure sums belongs.
        server: The address of the server, which the ledger notes with every release.
        output: What to do with the final model; None for nothing.
    """

    def __init__(
        self,
        federation: Federation,
        limits: Limits,
        serve: Serve,
        name: str = "site",
        server: str = "",
        output: Output | None = None,
    ) -> None:
        adapted = adapt_algorithm(federation.algorithm, federation.local, limits.rehearsal)
        self.federation = SiteFederation(**{**federation.arguments(), "algorithm": adapted})
        self.federation.site = self
        self.limits = limits
        self.serve = serve
        self.name = name
        self.output = output
        self.origin = f"server {server}" if server else ""
        self.journal = Journal()

    @property
    def clients(self) -> LocalClients:
        """The clients: whatever their number, each has the data of this site."""
        return self.federation.personal.clients

    def run(self) -> None:
        """Answer requests until the site is ended."""
        federation = self.federation
        release = federation.algorithm.release
        self.agreement = create_agreement(federation.settings(), federation.data)
        self.privacy = Privacy(None) if release is None else release.scoring.privacy
        self.models = ReceivedModels(
            students=dict(federation.students.items()),
            architectures=federation.architectures,
            predictors=federation.server.models,
            runner=federation.run.runner,
            create_extractor=create_extractor,
        )
        self.budget = self._create_budget()
        self.handlers = self._create_handlers()
        num_clients = len(federation.architectures)
        self.dispatcher = Dispatcher(self.agreement, num_clients, self.handlers, self.journal)
        if not self.limits.accept_new_pixels:
            self._check_pixels()
        self._log_updates()
        self._log_held_out_records()
        with warnings.catch_warnings():  # such as one about features that are not finite
            warnings.showwarning = lambda message, *_, **__: self.journal.log_line(
                f"warning: {message}", "warning"
            )
            self.serve(self.answer, self.dispatcher.largest_request)

    def answer(self, request: Message) -> Message:
        """Return the answer to a request, or the code that states why there is none."""
        return self.dispatcher.answer(request)

    # --- the table from kinds of requests to handlers --------------------------------------------

    def _create_handlers(self) -> dict[str, Handler]:
        """Return the handler of each kind of request."""
        federation = self.federation
        sums = None
        handlers: dict[str, Handler] = {}
        if any(step.summed for step in federation.plan.values()):
            # these files need an optional package
            from fedaux_pl.sites.handlers.keys import Keys
            from fedaux_pl.sites.handlers.masked import Masked
            from fedaux_pl.sites.site_sums import SiteSums

            sums = SiteSums(
                plan=federation.plan,
                models=self.models,
                data=federation.data,
                clients=self.clients,
                name=self.name,
                budget=self.budget,
                agreement=self.agreement,
            )
            handlers = {"keys": Keys(sums), "masked": Masked(sums)}
        handlers["prepare"] = Prepare(
            plan=federation.plan,
            models=self.models,
            model_options=federation.model_options,
            data=federation.data,
            clients=self.clients,
            budget=self.budget,
            sums=sums,
        )
        handlers["train"] = self._create_train()
        handlers["evaluate"] = self._create_evaluate()
        handlers["vote"] = self._create_vote()
        handlers["finish"] = Finish(
            models=self.models,
            personal=federation.personal,
            local=federation.local,
            output=self.output,
            describe_model=self._describe_model,
            describe_run=self._describe_run,
        )
        return handlers

    def _create_train(self) -> Handler:
        federation = self.federation
        if not federation.algorithm.trains_clients:
            return Refuse("settings", "the method of this configuration sends no models")
        return Train(
            models=self.models,
            clients=self.clients,
            data=federation.data,
            local=federation.local,
            limits=self.limits,
            head_only=federation.head_only,
        )

    def _create_evaluate(self) -> Handler:
        federation = self.federation
        limits = self.limits
        if not limits.evaluate:
            return Refuse("limits", "the server asks for an evaluation: see --evaluate")
        epsilon = limits.evaluate_epsilon
        epsilons = limits.epsilons(self.privacy)
        if epsilon is not None:
            smallest = min(epsilons.values())
            check_evaluate_epsilon(epsilon, smallest, federation.batchnorm_statistics)
        own = adapt_own_examples(federation.data.private.test(), federation.data)
        examples = own.to(self.models.device)
        if epsilon is None:
            return Evaluate(
                models=self.models,
                examples=examples,
                metrics=federation.evaluation.metrics,
                personal=federation.personal,
                uses_own_statistics=bool(federation.describe_client_models()),
            )
        delta = self.privacy.delta
        if limits.rehearsal:
            budget = Budget(None, {}, delta, epsilons)
            noise_seed = partial(federation.run.derive_seed, SeedPurpose.RELEASE_NOISE)
        else:
            budget = Budget.of_records(own, self.origin, delta, epsilons)
            noise_seed = None
        return EvaluateWithNoise(
            models=self.models,
            examples=examples,
            fingerprint=keyed_fingerprint(machine_key(), own.inputs, own.targets),
            model_options=federation.model_options,
            privacy=Privacy(epsilon, delta),
            budget=budget,
            noise_seed=noise_seed,
        )

    def _create_vote(self) -> Handler:
        if not self.limits.vote:
            return Refuse("limits", "the server asks for a vote: see --vote")
        data = self.federation.data
        validation = data.validation_examples or data.private.validation()
        if validation is None:
            return Vote(self.models, data.voting_examples, "training")
        examples = adapt_own_examples(validation, data)
        return Vote(self.models, examples.to(self.models.device), "validation")

    def _describe_model(self, local: LocalTraining, model: nn.Module) -> list[str]:
        """Return what makes the final model differ from the server's."""
        federation = self.federation
        return describe_client_models(
            federation.algorithm, local, federation.batchnorm_statistics, [model]
        )

    def _describe_run(self) -> dict[str, Any]:
        """Return the entry ``federation`` of a checkpoint."""
        checkpoint: dict[str, Any] = {}
        self.federation.on_save_checkpoint(checkpoint)
        run: dict[str, Any] = checkpoint["federation"]
        return run

    # --- the ledger and the first lines of the journal -------------------------------------------

    def _create_budget(self) -> Budget:
        """Return what may be released about the training records."""
        federation = self.federation
        delta = self.privacy.delta
        epsilons = self.limits.epsilons(self.privacy)
        allow_new_h0 = self.limits.allow_new_h0
        if self.limits.rehearsal or federation.algorithm.release is None:
            return Budget(None, {}, delta, epsilons, allow_new_h0)
        records = federation.data.client(0)
        return Budget.of_records(records, self.origin, delta, epsilons, allow_new_h0)

    def _check_pixels(self) -> None:
        """Raise a PrivacyError if a release would take pictures of the ledger for new records."""
        limits = self.limits
        if limits.rehearsal:
            return
        may_release = {
            "train": self.budget.ledger is not None,
            "test": limits.evaluate_epsilon is not None,
        }
        parts = [part for part, may in may_release.items() if may]
        check_pixels(self.federation.data.private, parts, Ledger(key_id(machine_key())))

    def _log_updates(self) -> None:
        """Log what the records have cost if the ledger has model updates of version 1.0."""
        budget = self.budget
        if budget.ledger is None:
            if self.limits.rehearsal or not Ledger(key_id(machine_key())).has_entries:
                return
            # this method releases nothing, but another one has
            records = self.federation.data.client(0)
            budget = Budget.of_records(records, self.origin, self.privacy.delta)
        try:
            total = budget.total()
        except PrivacyError as error:
            if self.budget.ledger is not None:
                raise
            self.journal.log_line(f"note: {error}", "note")  # this method does not need the ledger
            return
        if total.updates:
            self.journal.log_line(f"note: {total.describe()}", "note")

    def _log_held_out_records(self) -> None:
        """Log how many records the site holds out of training and releases."""
        data = self.federation.data
        if data.validation_fraction:
            self.journal.log_line(
                f"note: data.validation_fraction {data.validation_fraction:g} holds "
                f"{len(data.validation_examples or ())} records out of training and "
                "releases; an earlier release with another fraction is not used again",
                "note",
            )
