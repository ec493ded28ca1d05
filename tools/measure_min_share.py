r"""How soft labels, teachers' seconds and memory change with ``min_share``, in a run's last round.

    python tools/measure_min_share.py --config fedaux_resnet8 --config npz --config bf16 \
        --data.alpha 0.1 --trainer.max_epochs 6

Options are those of ``fedaux-pl fit``. The run itself has the ``min_share`` that they give.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from fedaux_pl.runs.parser import FederationCLI

SHARES = (0.0, 1e-3, 1e-2, 3e-2)


class Compare(pl.Callback):
    """Computes the soft labels of the last round with every share."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Compute them before the round does."""
        server, compute = pl_module.server, pl_module.server.soft_labels

        def compare(round_: Any, *scores: Mapping[str, Tensor]) -> Tensor:
            settings, whole = server.settings, compute(round_, *scores)
            for share in SHARES if round_.number == trainer.max_epochs else ():
                object.__setattr__(server, "settings", replace(settings, min_share=share))
                seconds = min(self._measure(compute, round_, *scores) for _ in range(3))
                found = compute(round_, *scores)
                whole = found if share == 0 else whole
                memory = server.context.carried.memory
                size = sum(t.nbytes for own in memory._pending.values() for t in own.values())
                change = (found - whole).abs().sum(dim=1) / 2
                same = (found.argmax(dim=1) == whole.argmax(dim=1)).float().mean()
                print(
                    f"min_share {share:g}: {seconds:.3f} s, {size / 1e6:.2f} MB remembered, "
                    f"soft labels change by {change.mean():.2g} (at most {change.max():.2g}; "
                    f"total variation), {100 * same:.2f} % keep their class"
                )
            object.__setattr__(server, "settings", settings)
            return compute(round_, *scores)

        object.__setattr__(server, "soft_labels", compare)

    @staticmethod
    def _measure(compute: Any, *arguments: Any) -> float:
        start = time.perf_counter()
        float(compute(*arguments).sum())  # waits for the device
        return time.perf_counter() - start


def main() -> None:
    """Run a federation and compare."""
    torch.backends.cudnn.benchmark = True
    cli = FederationCLI("fit", sys.argv[1:])
    cli.trainer.callbacks.append(Compare())
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


if __name__ == "__main__":
    main()
