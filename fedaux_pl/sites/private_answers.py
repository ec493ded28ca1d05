"""What a site answers about the server's models from its test records."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from fedaux_pl.data import Examples
from fedaux_pl.data.fingerprints import key_id, keyed_fingerprint, machine_key
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.lazy_inputs import Inputs, keep_in_host
from fedaux_pl.data.read_private import renumber
from fedaux_pl.engine.inference import (
    BatchNormOption,
    predict_private_logits,
)
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import Privacy
from fedaux_pl.scoring.release import VERSION
from fedaux_pl.sites.budget import Budget, NewRelease, ReleaseKey
from fedaux_pl.sites.ledger import Ledger, ledger_digests
from fedaux_pl.sites.site_settings import Limits


class PrivateAnswers:
    """Predictions of a site's test records, and sums over them with Gaussian noise.

    Args:
        federation: The federation of the site.
        limits: What the site agrees to: with ``evaluate_epsilon`` None, answers have no noise.
        privacy: That of the method, whose delta is used.
        origin: The server, which the ledger notes.
    """

    def __init__(
        self,
        federation: Federation,
        limits: Limits,
        privacy: Privacy,
        origin: str,
    ) -> None:
        self.federation = federation
        self.rehearsal = limits.rehearsal
        epsilon = limits.evaluate_epsilon
        self.privacy = Privacy(epsilon, privacy.delta)
        epsilons = limits.epsilons(privacy)
        if epsilon is not None:
            _check_epsilon(epsilon, min(epsilons.values()), federation.batchnorm_statistics)
        examples = read_own(federation, federation.data.private.test())
        self.examples = examples.to(federation.trainer.strategy.root_device)
        if epsilon is not None:
            key = machine_key()
            labels = self.examples.targets
            digests = {0: ledger_digests(examples.inputs, labels, key)}
            ledger = None if limits.rehearsal else Ledger(key_id(key), origin=origin)
            self.budget = Budget(ledger, digests, privacy.delta, epsilons)
            contents = keyed_fingerprint(key, examples.inputs, labels)
            models = f"{list(federation.students)} {federation.model_options}"
            options = f"{self.privacy.epsilon} {self.privacy.delta}"
            # in all ledgers: do not change it
            self._key = f"evaluation {VERSION} {models} {options} {contents}"

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the server is told: None without noise, and in a rehearsal."""
        return None if self.rehearsal else self.privacy.epsilon

    def predict(self, name: str, state: State) -> Tensor:
        """Return f(x) on all records; if noise follows, each row depends on its record alone."""
        inputs = self.examples.inputs
        if self.privacy.epsilon is None:
            return predict_received(self.federation, name, state, inputs)
        model = self.federation.server.models[name]
        model.load_state_dict(state)
        return predict_private_logits(model, inputs)

    def release(
        self, what: str, compute: Callable[[], Tensor], sensitivity: float, asked: str, round_: int
    ) -> tuple[Tensor, str]:
        """Return a vector with noise and its guarantee; the stored one if ``asked`` is the same.

        Without ``evaluate_epsilon`` it has no noise.
        """
        if self.privacy.epsilon is None:
            return compute(), "NOT private, no epsilon covers it"
        cost = replace(self.privacy.cost(sensitivity), what=what)
        seed = None
        if self.rehearsal:
            seed = self.federation.server.context.derive_seed(SeedPurpose.RELEASE_NOISE, round_)

        def add_noise() -> NewRelease:
            noisy, _ = self.privacy.release(compute(), sensitivity, seed)
            return {"right": noisy}, {0: cost}  # its name in all ledgers

        key = ReleaseKey(f"{self._key} {asked}")
        tensors, total = self.budget.release_once(key, add_noise, cost)
        guarantee = "NOT private (a rehearsal)" if total is None else total.describe_one(cost)
        return tensors["right"], guarantee


def read_own(federation: Federation, examples: Examples) -> Examples:
    """Return test or validation data of a site with the classes of the federation."""
    data = federation.data
    examples = renumber(examples, "class", tuple(data.classes), "own")
    check_same_kind(data.all_inputs[0], examples.inputs, "training and other data of this site")
    return Examples(keep_in_host(examples.inputs), examples.targets, examples.classes)


def predict_received(federation: Federation, name: str, state: State, inputs: Inputs) -> Tensor:
    """Return f(x) of a model that the server has sent."""
    server = federation.server
    runner = server.context.runner
    on_device = {key: tensor.to(runner.device) for key, tensor in state.items()}
    return runner.predict(server.models[name], on_device, inputs)


def _check_epsilon(epsilon: float, limit: float, statistics: BatchNormOption) -> None:
    """Raise a ConfigurationError if the noise costs too much or does not cover the answers."""
    if epsilon > limit:
        raise ConfigurationError(
            f"evaluate_epsilon is {epsilon:g}, but all answers together may cost epsilon {limit:g} "
            "(that of the method, 0 if it has none): state more with --epsilon_limit, or lower it"
        )
    if statistics == "own":
        raise ConfigurationError(
            "with batchnorm_statistics 'own' an answer depends on the training records, which the "
            "noise of --evaluate_epsilon does not cover: set it to 'running', or leave out "
            "--evaluate_epsilon"
        )
