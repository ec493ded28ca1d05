"""Sites in this process: the real server and the real sites, without a network."""

from dataclasses import replace

import pytorch_lightning as pl

from fedaux_pl.callbacks import FederationReport
from fedaux_pl.data import FederatedDataModule, Source
from fedaux_pl.sites import Limits, Site, Sites
from fedaux_pl.sites.handlers.evaluate_with_noise import EvaluateWithNoise
from fedaux_pl.sites.site_server import SiteServer, attach
from fedaux_pl.sites.site_status import SiteStatus
from fedaux_pl.sites.wire import read_message


class Given(Source):
    """The examples that it is given; there are no others."""

    def __init__(self, train=None, test=None, auxiliary=None, validation=None, **input_format):
        self.parts = {"train": train, "test": test, "auxiliary": auxiliary}
        self.given_validation = validation
        self.given_format = input_format

    def train(self):
        return self._get("train")

    def test(self):
        return self._get("test")

    def auxiliary(self):
        return self._get("auxiliary")

    def validation(self):
        return self.given_validation

    @property
    def input_format(self):
        return self.given_format

    def _get(self, part):
        if self.parts[part] is None:
            raise AssertionError(f"there are no {part} data here, and nobody may ask for them")
        return self.parts[part]


def apart(data, own_tests=False):
    """The data of the server and of each site, from those of a simulation.

    With ``own_tests`` the test data that name a client are at its site, too.
    """
    data.setup()
    auxiliary = None
    if data.auxiliary is not None:
        auxiliary = Given(auxiliary=data.auxiliary_inputs)
    own = {name: getattr(data, name) for name in ("seed", "num_clients", "negative_fraction")}
    test = data.test_examples
    tests = [None] * data.num_clients
    if own_tests:
        tests = [test.take((test.clients == i).nonzero().flatten()) for i in range(len(tests))]
        test = replace(test, clients=None, client_names=())
    server = FederatedDataModule(Given(test=test), auxiliary, holds="public", **own)
    classes = list(data.classes)
    sites = [
        FederatedDataModule(
            Given(train=data.client(i), test=tests[i]), holds="private", classes=classes, **own
        )
        for i in range(data.num_clients)
    ]
    return server, sites


def quiet_trainer(root, rounds):
    return pl.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=root,
        callbacks=[FederationReport(images=False)],
    )


def start_site(federation_of, data, root, limits, rounds=1):
    """A site that is ready to answer, named after its folder."""
    site = Site(federation_of(), limits, lambda answer, largest: None, root.name, "HOST:1")
    quiet_trainer(root, rounds).fit(site.federation, datamodule=data)
    return site


def limit(site, **limits):
    """Give the budgets of a site other limits."""
    changed = replace(Limits(), **limits)
    budgets = [site.budget]
    evaluate = site.handlers["evaluate"]
    if isinstance(evaluate, EvaluateWithNoise):
        budgets.append(evaluate.budget)
    for budget in budgets:
        budget.limits = changed.epsilons(site.privacy)
    site.budget.allow_new_h0 = changed.allow_new_h0


class Loopback:
    """A hub that calls sites directly, through the bytes of their messages.

    Attributes:
        faults: For a site, a function of the answering function and the request.
        sent: All messages that have left a site.
    """

    def __init__(self, sites):
        self.sites = sites
        self.faults = {}
        self.away = set()
        self.sent = []

    def connected(self):
        return [name for name in self.sites if name not in self.away]

    def ask(self, requests, timeout):
        for name, message in requests.items():
            arrived = read_message(message.fields_json, message.body)
            answer = self.sites[name].answer
            if name in self.faults and message.fields["kind"] != "hello":
                message = self.faults[name](answer, arrived)
            else:
                message = answer(arrived)
            if message is not None:
                self.sent.append(message)
                message = read_message(message.fields_json, message.body)
            yield name, message


REHEARSAL = Limits(rehearsal=True)


def prepare(
    root,
    federation_of,
    data,
    limits=REHEARSAL,
    rounds=1,
    own_tests=False,
    change_data=lambda number, data: None,
    **options,
):
    """The server's federation with its trainer and data, and the hub.

    ``change_data`` gets the number and the data of each site before it starts.
    """
    names = [f"site-{i}" for i in range(data.num_clients)]
    server_data, site_data = apart(data, own_tests)
    for number, own in enumerate(site_data):
        change_data(number, own)
    defaults = {"rehearsal": True, "final_model": False, "wait": 0, "timeout": 1}
    settings = Sites(names, root, **(defaults | options))
    sites = {
        name: start_site(federation_of, own, root / name, limits, rounds)
        for name, own in zip(names, site_data, strict=True)
    }
    federation = federation_of()
    attach(federation, server_data, settings)
    hub = Loopback(sites)
    (root / "server").mkdir(exist_ok=True)
    status = SiteStatus(root / "server" / "sites.json", names)
    federation.remote = SiteServer(federation, hub, status, settings)
    return federation, server_data, hub


def fit(root, federation, data, rounds=2, **options):
    trainer = quiet_trainer(root / "server", rounds)
    trainer.fit(federation, datamodule=data, **options)
    return trainer
