"""Several processes that share the clients of a federation."""

import signal

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.processes import Processes


class ClientParallel(DDPStrategy):
    """Starts processes as Lightning's ``ddp`` does, and leaves to the federation what they share.

    DistributedDataParallel would average gradients after every step of a client. Here each process
    trains clients of its own, and what they learned is added up once a round.
    Its arguments are those of Lightning's DDPStrategy.
    """

    def configure_ddp(self) -> None:
        """Leaves the model as it is."""

    def on_exception(self, exception: BaseException) -> None:
        """Ends the processes that this one started, which would wait for it and write nothing."""
        super().on_exception(exception)
        if isinstance(self.launcher, _SubprocessScriptLauncher):
            self.launcher.kill(signal.SIGKILL)  # SIGTERM is heeded after a round, which has no end


StrategyRegistry.register(
    "client_parallel", ClientParallel, description="Processes that share the clients", override=True
)


def processes_of(trainer: pl.Trainer) -> Processes:
    """The processes of a Trainer.

    Raises:
        ConfigurationError: If a strategy would have them do something else than share clients.
    """
    strategy = trainer.strategy
    if trainer.world_size > 1 and not isinstance(strategy, ClientParallel):
        raise ConfigurationError(
            f"{trainer.world_size} processes of a federation share its clients, which "
            f"{type(strategy).__name__} does not know: give the Trainer "
            "strategy='client_parallel' (fedaux_pl.engine.ClientParallel)"
        )
    return Processes(trainer.global_rank, trainer.world_size, strategy.root_device)
