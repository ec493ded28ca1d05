"""DistillationModule alone: a student learns from two teachers, without any label.

Each teacher is trained here on six of the ten digits, so each knows little more than half of the
test digits. The student sees only public digits without labels, and what both teachers predict on
them. It ends up knowing all ten.

python examples/distillation_alone.py
"""

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedaux_pl import ClientModule, Digits, DistillationModule, OptimizerSettings
from fedaux_pl.functional import soft_labels


def load(*tensors: Tensor, shuffle: bool = True) -> DataLoader:
    """Return batches of tensors."""
    return DataLoader(TensorDataset(*tensors), batch_size=32, shuffle=shuffle)


def fit(module: pl.LightningModule, batches: DataLoader, test: DataLoader, epochs: int) -> float:
    """Train a module; return its accuracy on the test digits."""
    trainer = pl.Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(module, batches)
    return float(trainer.test(module, test, verbose=False)[0]["test/accuracy"])


def main(epochs: int = 5, width: float = 0.25) -> tuple[list[float], float]:
    """Return the test accuracies of the two teachers, and that of the student."""
    train, test = Digits().train(), Digits().test()
    public = Digits().auxiliary()  # uint8 images without labels, shape (N, 1, 8, 8)
    test_digits = load(test.inputs, test.targets, shuffle=False)
    options = {"in_channels": 1, "width": width}
    optimizer = OptimizerSettings(lr=1e-3)

    accuracies = []
    logits = []
    for known in (train.targets <= 5, train.targets >= 4):  # 0 to 5, and 4 to 9
        teacher = ClientModule("resnet8", 10, optimizer=optimizer, model_options=options)
        own_digits = load(train.inputs[known], train.targets[known])
        accuracies.append(fit(teacher, own_digits, test_digits, epochs))
        teacher.eval()
        with torch.no_grad():
            logits.append(teacher(public))  # shape (N, 10)

    # The mean of both teachers. With scores of shape (2, N), each counts where it has a high score.
    targets = soft_labels(torch.stack(logits))
    student = DistillationModule("resnet8", 10, optimizer=optimizer, model_options=options)
    return accuracies, fit(student, load(public, targets), test_digits, epochs)


if __name__ == "__main__":
    pl.seed_everything(0)
    torch.set_num_threads(1)  # for networks this small, more threads mostly wait for each other
    teachers, student = main()
    print(f"teachers: {teachers[0]:.1%} and {teachers[1]:.1%}; student: {student:.1%}")
