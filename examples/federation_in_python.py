"""A federation in Python: FedAUX on the embedded digits, with a report and a progress bar.

python examples/federation_in_python.py
"""

import pytorch_lightning as pl

from fedaux_pl import (
    Digits,
    Distillation,
    FedAUX,
    FederatedDataModule,
    Federation,
    LocalTraining,
    Pretraining,
    Privacy,
    ViewSettings,
)
from fedaux_pl.callbacks import FederationProgress, FederationReport


def main(rounds: int = 10, epochs: int = 15, width: float = 0.25, root: str = "logs") -> float:
    """Runs a federation of 20 clients and returns its test accuracy after the last round."""
    data = FederatedDataModule(private=Digits(), auxiliary=Digits(), num_clients=20, alpha=0.01)
    federation = Federation(
        FedAUX(privacy=Privacy(epsilon=1.0)),
        clients={"resnet8": 20},
        local=LocalTraining(epochs=2, batch_size=16),
        distillation=Distillation(epochs=2, batch_size=64, lr=1e-3),
        pretraining=Pretraining(
            epochs=epochs, batch_size=128, views=ViewSettings(flip=0.0, min_scale=0.4)
        ),
        model_options={"width": width},
    )
    trainer = pl.Trainer(
        max_epochs=rounds,  # an epoch of this Trainer is a communication round
        default_root_dir=root,
        callbacks=[FederationReport(), FederationProgress()],
        log_every_n_steps=1,
        num_sanity_val_steps=0,
    )
    trainer.fit(federation, datamodule=data)
    return federation.history[-1]["accuracy"]


if __name__ == "__main__":
    print(f"accuracy {main():.1%}")
