"""A recorder for the CPU, which captures nothing: a replay calls the steps again."""

import copy
import dataclasses
from contextlib import contextmanager, nullcontext

import torch

from fedaux_pl.accelerate.recording.cuda_graphs import ProbeResult
from fedaux_pl.engine.optimizer_state import snapshot
from fedaux_pl.engine.stage import create_optimizer


class FakeRecorder:
    """Replays steps by calling them, and counts calls.

    Attributes:
        captured: The number of steps in each capture.
        captured_rngs: The number of generators in each capture.
        captured_pools: The memory pool of each capture.
        replayed: The number of replays.
        probed: The number of other jobs of each probe.
        compiled: The number of passes in ``compiling``.
    """

    def __init__(self, max_replicas=3, obstacle="", uses_rng=False):
        self.result = ProbeResult(obstacle, max_replicas, uses_rng)
        self.captured, self.captured_rngs, self.captured_pools = [], [], []
        self.replayed = self.pools = 0
        self.probed = []
        self.compiled = 0

    def probe(self, module, batch, step, others=0):
        self.probed.append(others)
        optimizer = create_optimizer(copy.deepcopy(module))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return dataclasses.replace(self.result, optimizer_state=snapshot(optimizer))

    def prepare_optimizer(self, optimizer):
        pass

    def memory_pool(self):
        self.pools += 1
        return self.pools

    @contextmanager
    def compiling(self):
        self.compiled += 1
        yield

    def create_rng(self):
        return FakeRNG()

    def step_context(self, others):
        return nullcontext()

    def capture(self, steps, pool, rngs=()):
        self.captured.append(len(steps))
        self.captured_rngs.append(len(rngs))
        self.captured_pools.append(pool)

        def replay():
            self.replayed += 1
            for step in steps:
                step()

        return replay


class FakeRNG:
    """The random number generator of one replica on the CPU."""

    def seed(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def active(self):
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        yield
        self.state = torch.get_rng_state()
        torch.set_rng_state(before)
