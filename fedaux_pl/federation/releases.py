"""The releases of the clients before the first round (FedAUX, Algorithm 1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedaux_pl.algorithms import ClientRelease, Evidence, Released
from fedaux_pl.callbacks.report import cache_folder
from fedaux_pl.data.cache import CacheKey, tensor_digest
from fedaux_pl.errors import ConfigurationError, PrivacyError
from fedaux_pl.federation.cache import as_text, describe_model, load_or_compute
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.students import Students
from fedaux_pl.functional import LinearClassifier, fit_linear_head
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Collected, Plan, ReleasedHead, Step, clients_of, pack, unpack

_Ask = Callable[[], Sequence[ReleasedHead]]


@dataclass(frozen=True)
class ReleaseCache:
    """Simulated releases of earlier runs. Their noise is seeded, so they can be used again.

    Attributes:
        run: What all parts of the run work with.
        model_options: The options of each architecture, defaults included.
        folder: Where releases are stored; None to store none.
    """

    run: Run
    model_options: Mapping[str, Mapping[str, Any]]
    folder: Path | None

    def load_or_ask(
        self, step: Step, h0: Mapping[str, nn.Module], ask: _Ask
    ) -> Sequence[ReleasedHead]:
        """Return what clients have released in an earlier run, or ask them."""
        key: CacheKey = {
            "kind": "simulated-heads",
            "release": self._describe(step, h0),
            "seed": self.run.seed,
        }
        stored = load_or_compute(self.run.processes, self.folder, key, lambda: pack(ask()))
        return unpack(stored, step)

    def _describe(self, step: Step, h0: Mapping[str, nn.Module]) -> str:
        """Return all that determines the releases of a step except their noise, as text.

        The records of each client and what maps them to rows are part of it. The options by which
        records were divided among clients are not.
        """
        data = self.run.data
        key = {
            "scoring": step.settings(),
            "architectures": self.run.architectures,
            "h0": {
                name: describe_model(self.model_options[name], model, head=False)
                for name, model in h0.items()
            },
            "clients": data.client_fingerprints(),
            "classes": len(data.classes),
        }
        if step.scoring.feature_map.uses_auxiliary:
            key["auxiliary"] = data.fingerprints["auxiliary"]
        if step.sends:
            key["sent"] = tensor_digest(*step.scorer.tensors().values())
        if step.scoring.depends_on_negatives:
            key["negatives"] = tensor_digest(data.negative_inputs)
        return as_text(key)


@dataclass(frozen=True)
class ReleaseCollector:
    """Asks the clients for their releases, step by step, and keeps what they have released.

    Attributes:
        run: What all parts of the run work with.
        release: What clients release.
        plan: The steps, planned by public numbers.
        cache: Simulated releases of earlier runs.
    """

    run: Run
    release: ClientRelease
    plan: Plan
    cache: ReleaseCache

    def collect(
        self,
        pool: ClientPool,
        collected: dict[str, Collected],
        h0: Mapping[str, nn.Module],
    ) -> Released:
        """Ask every client that has not sent its release yet, and return all releases.

        Args:
            pool: The clients. Sites may not answer; they are asked again in a later round.
            collected: The releases so far, by step, which this method adds to.
            h0: h_0 of each architecture.
        """
        features = PublicFeatures(self.run.data, h0, self.run.runner.predict_features)
        parts = features.parts()
        released = self._released(collected, parts)
        for step in self.plan.values():
            for name, asked in self._whom_to_ask(step, released).items():
                first_heads = () if step is released.first else released.heads
                collected[name] = self._ask(pool, asked, features, first_heads)
            released = self._released(collected, parts)  # sites have reported their sizes
        return released

    def is_complete(self, collected: Mapping[str, Collected]) -> bool:
        """Return whether every client that was asked has released."""
        return bool(collected) and not any(map(self._missing, collected.values()))

    def _released(
        self, collected: Mapping[str, Collected], parts: Mapping[str, Mapping[str, Tensor]]
    ) -> Released:
        data = self.run.data
        return Released(
            self.plan,
            dict(collected),
            architectures=self.run.architectures,
            sizes=data.client_sizes,
            num_negatives=len(data.negative_inputs),
            num_classes=len(data.classes),
            parts=parts,
        )

    def _whom_to_ask(self, step: Step, released: Released) -> dict[str, Collected]:
        """Return who takes part in a step, with what they have released so far.

        The clients of all architectures are asked together, in later steps those of the first step.
        If the server sends tensors with the step, it computes them for one architecture at a time,
        whose clients are then asked apart, under names such as ``gradient/resnet8``.
        """
        if not step.sends:
            clients = list(range(len(self.run.architectures)))
            if step is not released.first:
                clients = clients_of(released.heads)
            asked = released.collected.get(step.name, Collected(step, clients))
            return {step.name: replace(asked, clients=clients)}
        groups = {}
        for architecture in released.reference:  # its keys: all architectures
            clients = clients_of(released.group(architecture))
            if not clients:  # sites that have never answered
                continue
            name = f"{step.name}/{architecture}"
            if name in released.collected:
                asked = released.collected[name]
            else:
                sent = self.release.send(released, architecture)
                asked = Collected(step.with_sent(sent), clients)
            groups[name] = replace(asked, clients=clients)
        return groups

    def _ask(
        self,
        pool: ClientPool,
        asked: Collected,
        features: PublicFeatures,
        first_heads: Sequence[ReleasedHead],
    ) -> Collected:
        """Return a step with the releases of the clients asked; those of sites may be missing.

        Releases of a checkpoint are used again. Later steps use the feature maps of
        ``first_heads``, the releases of the first step.
        """
        step = asked.step
        self._check_secrecy(pool, step)
        if not asked.heads:
            # a server of sites sends the same classifier as in its first run
            step = pool.settle(step, asked.clients, first_heads)
        ask = partial(self._ask_pool, pool, step, self._missing(asked), features, first_heads)
        heads = list(asked.heads)
        if pool.at_sites:
            heads += ask()
            heads.sort(key=lambda head: head.client)
        elif not heads:
            if step.scoring.privacy.secret:  # no release is used again: noise is drawn anew
                heads = list(ask())
            else:
                heads = list(self.cache.load_or_ask(step, features.h0, ask))
        if not pool.at_sites:
            heads = [self._checked(head, step) for head in heads]
        return replace(asked, step=step, heads=heads)

    def _ask_pool(
        self,
        pool: ClientPool,
        step: Step,
        clients: Sequence[int],
        features: PublicFeatures,
        first_heads: Sequence[ReleasedHead],
    ) -> Sequence[ReleasedHead]:
        """Let clients release, with feature maps that are fitted to public features once."""
        if not clients:
            return []
        maps = {self.run.architectures[head.client]: head.public_map for head in first_heads}
        if not maps:
            for name in features.h0:
                auxiliary = features.auxiliary(name)
                maps[name] = step.scoring.fit_map(auxiliary, features.negatives(name))
        return pool.prepare(step, features, maps, clients)

    def _check_secrecy(self, pool: ClientPool, step: Step) -> None:
        """Raise a PrivacyError if secret noise would not make the release private."""
        if not step.scoring.privacy.secret:
            return
        shared = self.run.data.shared_rows
        if shared:
            raise PrivacyError(
                f"{shared} auxiliary samples are private training samples too, so h_0 "
                "and the feature map depend on private data: remove them from the auxiliary data"
            )
        if step.summed and not pool.at_sites:
            raise PrivacyError(
                "privacy.secure is set and privacy.secret true, but the clients run in one "
                "process, which sees all of them: set privacy.secret to false for a simulation, "
                "privacy.secure to null, or run real sites"
            )

    def _checked(self, head: ReleasedHead, step: Step) -> ReleasedHead:
        """Check the noise of a release, and state a flaw if auxiliary data are private, too."""
        data = self.run.data
        size = data.client_sizes[head.client]
        name = data.client_names[head.client]
        step.check_release(head, size, len(data.negative_inputs), name)
        if not data.shared_rows:
            return head
        flaw = f"{data.shared_rows} auxiliary samples are private training samples too"
        flaw = "; ".join(filter(None, [head.release.flaw, flaw]))
        return replace(head, release=replace(head.release, flaw=flaw))

    def _missing(self, asked: Collected) -> list[int]:
        """Return the clients without a release. A finished secure sum accepts no new clients."""
        names = self.run.architectures
        known = set(clients_of(asked.heads))
        if asked.step.summed:
            summed = {names[head.client] for head in asked.heads}
            known |= {client for client in asked.clients if names[client] in summed}
        return [client for client in asked.clients if client not in known]


def create_collector(
    run: Run, students: Students, release: ClientRelease, plan: Plan
) -> ReleaseCollector:
    """Create what asks the clients of a run. A trial (``fast_dev_run``) stores nothing."""
    if run.is_trial and release.scoring.privacy.secret:
        raise ConfigurationError(
            "fast_dev_run would make releases with secret noise, which cost privacy: set "
            "algorithm.privacy.secret to false in it"
        )
    options = students.complete_options()
    folder = None if run.is_trial else cache_folder(run.runner.trainer)
    return ReleaseCollector(run, release, plan, ReleaseCache(run, options, folder))


def start_students_at_classifier(
    students: Students, evidence: Evidence, released: Released, processes: Processes
) -> None:
    """Start the students' heads at the classifier that was made of class statistics.

    Students whose architecture has no classifier of its own start from a linear regression on the
    class probabilities.
    """
    for name, features in released.reference.items():
        if name in evidence.classifiers:
            public_map = released.group(name)[0].public_map
            fitted = public_map.linear_head(evidence.classifiers[name], features)
        else:
            probabilities = evidence.class_probabilities["distill"]
            fitted = LinearClassifier(*fit_linear_head(features, probabilities))
        weight, bias = (x.float() for x in processes.broadcast(fitted))
        head = {"head.weight": weight, "head.bias": bias}
        students[name].load_state_dict(head, strict=False)
