"""`fedaux-pl pretrain`: preparation phase P1 of FedAUX on its own."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_only

from fedaux_pl.data import AuxiliaryDataModule, sources
from fedaux_pl.modules import SimCLR


class _Parser(LightningArgumentParser):
    """Says what is wrong with a command line without a page of usage before it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if "Expected a dot import path" in message and "data." in message:
            names = ", ".join(sorted(sources.__all__))
            message = f"{message.strip()}\nThe data sources are: {names}."
        print(f"{self.prog}: error: {message}\n({self.prog} --help lists options)", file=sys.stderr)
        raise SystemExit(2) from ex


class PretrainCLI(LightningCLI):
    """The parser of `pretrain`: SimCLR as the model, auxiliary data as the data."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed for all; a checkpoint to go on from."""
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="A checkpoint of an interrupted run to go on from.",
        )
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def instantiate_classes(self) -> None:
        """Reports a setting that a class refuses as a mistake of the command line."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError) as error:
            self.parser.error(str(error))


def parse(args: Sequence[str]) -> PretrainCLI:
    """Reads a command line and creates model, data and Trainer from it, without running anything.

    Args:
        args: The command line after the verb.
    """
    # Meant for those who pass arguments by mistake; here the verb in front is why.
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    # Every epoch, also those without validation, after which Lightning's default would save.
    checkpoint = ModelCheckpoint(filename="last", save_on_train_epoch_end=True)
    return PretrainCLI(
        SimCLR,
        AuxiliaryDataModule,
        args=list(args),
        run=False,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        trainer_defaults={"default_root_dir": "logs", "callbacks": [checkpoint]},
        parser_class=_Parser,
        parser_kwargs={"prog": "fedaux-pl pretrain"},
        save_config_kwargs={"overwrite": True},
    )


def pretrain(args: Sequence[str]) -> Path | None:
    """Learns h_0 as the command line says and writes it to ``h0.pt`` beside the logs.

    Args:
        args: The command line after the verb.

    Returns:
        The path of the file, on the first process.
    """
    cli = parse(args)
    before = _knn_accuracy(cli)
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path)
    after = _knn_accuracy(cli)
    return _report(cli, before, after)


def _knn_accuracy(cli: LightningCLI) -> float | None:
    if cli.datamodule.probe is None:
        return None
    return cli.trainer.validate(cli.model, cli.datamodule, verbose=False)[0]["knn_accuracy"]


@rank_zero_only
def _report(cli: LightningCLI, before: float | None, after: float | None) -> Path:
    trainer, model = cli.trainer, cli.model
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "h0.pt"
    torch.save(h0_payload(model), path)
    if before is not None and after is not None:
        print(
            f"kNN accuracy of the features: {before:.1%} with random weights, {after:.1%} after "
            f"{trainer.current_epoch} epochs"
        )
    print(f"h_0: {path}")
    print(f"TensorBoard: tensorboard --logdir {trainer.default_root_dir}")
    return path


def h0_payload(model: SimCLR) -> dict[str, Any]:
    """What ``h0.pt`` holds: the weights of h_0 and the architecture that they belong to.

    Load it with ``torch.load(path, weights_only=True)`` and hand ``state`` to ``load_backbone``.
    """
    return {
        "model": model.hparams["model"],
        "model_options": model.hparams["model_options"] or {},
        "state": {key: tensor.cpu() for key, tensor in model.backbone_state().items()},
    }
