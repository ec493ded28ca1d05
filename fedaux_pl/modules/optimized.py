"""What every LightningModule here that descends a loss shares: its optimizer, its mean loss."""

import pytorch_lightning as pl
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics.aggregation import MeanMetric

from fedaux_pl.modules.optimizers import OptimizerName, create_optimizer


class OptimizedModule(pl.LightningModule):
    """A module with one optimizer, chosen by name; the subclass says what is trained by it."""

    def __init__(self) -> None:
        super().__init__()
        self.train_loss = MeanMetric()

    def set_optimizer(
        self, name: OptimizerName, lr: float, momentum: float, weight_decay: float
    ) -> None:
        """Chooses the optimizer, once all parameters are there; a wrong setting fails here."""
        self._optimizer = (name, lr, momentum, weight_decay)
        create_optimizer(self.parameters(), *self._optimizer)

    def configure_optimizers(self) -> Optimizer:
        """The optimizer over what is trained."""
        return create_optimizer(self.parameters(), *self._optimizer)

    def log_training(self, loss: Tensor, batch_size: int) -> None:
        """Logs the mean training loss of the epoch, where a Trainer is there to log it."""
        if self._trainer is not None:
            self.train_loss(loss.detach(), weight=batch_size)
            self.log("train_loss", self.train_loss, on_epoch=True, on_step=False, prog_bar=True)
