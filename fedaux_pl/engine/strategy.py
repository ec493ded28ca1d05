"""The strategy of a run with several processes: each trains some of the clients."""

import signal

from fedaux_pl.lightning import (
    DDPStrategy,
    SingleDeviceStrategy,
    StrategyRegistry,
    TrainerFn,
    _SubprocessScriptLauncher,
    pl,
)
from fedaux_pl.processes import Processes


class ClientParallel(DDPStrategy):
    """Starts processes as Lightning's ``ddp`` does, but does not synchronize gradients.

    DistributedDataParallel would average gradients after every step of a client. Here each process
    trains its own clients, and the federation sums their results once a round.
    The arguments are those of Lightning's DDPStrategy.
    """

    def configure_ddp(self) -> None:
        """Leave the model as it is."""

    def on_exception(self, exception: BaseException) -> None:
        """Kill the processes that this one started: they would wait for it forever."""
        super().on_exception(exception)
        if isinstance(self.launcher, _SubprocessScriptLauncher):
            # not SIGTERM: Lightning handles it after a round, which a waiting process never ends
            self.launcher.kill(signal.SIGKILL)


StrategyRegistry.register(
    "client_parallel", ClientParallel, description="Processes that share the clients", override=True
)


def processes_of(trainer: pl.Trainer) -> Processes:
    """Return the processes of a Trainer, which must share the clients in a fit or if several."""
    strategy = trainer.strategy
    is_shared = isinstance(strategy, SingleDeviceStrategy | ClientParallel)
    if not is_shared and (trainer.world_size > 1 or trainer.state.fn == TrainerFn.FITTING):
        raise ValueError(
            f"trainer.strategy: got {type(strategy).__name__}; expected auto or ddp on the command "
            "line, where several processes share the clients: in Python, give the Trainer "
            "strategy='client_parallel' (fedaux_pl.engine.ClientParallel)"
        )
    return Processes(trainer.global_rank, trainer.world_size, strategy.root_device)
