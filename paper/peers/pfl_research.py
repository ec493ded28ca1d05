"""Seconds of a round of FedAVG in pfl-research: 8 clients of 2,500 images, ResNet-8, batches of 32.

    pip install pfl && python paper/peers/pfl_research.py

Images are random, and on the device from the start, as ours are. ``fedaux-pl benchmark --config
fedaux_resnet8 --config methods/fedavg --config npz --config bf16`` measures the same clients here.
"""

import argparse
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedaux_pl.models import ResNet8


class Classifier(ResNet8):
    """ResNet-8 with the two methods that pfl-research calls."""

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        """Return the cross-entropy of a batch."""
        self.train(not is_eval)
        return cross_entropy(self(x), y)

    def metrics(self, *_: Tensor, **_options: bool) -> dict[str, float]:
        """Measure nothing: rounds here are clients alone."""
        return {}


class Clock(TrainingProcessCallback):
    """Print the seconds of every round."""

    started = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start the clock."""
        Clock.started = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, _metrics: Metrics, _model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Stop the clock of the round."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        print(f"round {central_iteration}: {now - Clock.started:.3f} s", flush=True)
        Clock.started = now
        return False, Metrics()


def main() -> None:
    """Run FedAVG and print the seconds of each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2500)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    clients = [
        Dataset(
            [
                torch.randint(256, (given.samples, 3, 32, 32), dtype=torch.uint8, device=device),
                torch.randint(10, (given.samples,), device=device),
            ]
        )
        for _ in range(20)
    ]
    network = Classifier(10, width=given.width).to(device)
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.Adam,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if given.bf16 else None,
        use_torch_compile=given.compile,
    )
    order = iter(range(10**9))
    federated = FederatedDataset(
        make_dataset_fn=lambda user: clients[user], user_sampler=lambda: next(order) % len(clients)
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=8,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=federated, val_data=federated),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=1e-3, local_batch_size=32
        ),
        callbacks=[Clock()],
    )


if __name__ == "__main__":
    main()
