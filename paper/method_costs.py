"""Table 4: operations, bytes and privacy of the methods, in words and in numbers.

    python paper/method_costs.py

The numbers are those of ResNet-8 on CIFAR-10 with STL-10, n = 20, C = 0.4, T = 100, with the
scoring of the paper's text; our own scoring (--config scoring/whitened_mean) sends no negatives.
Further options are those of fit. Nothing is run and no data are loaded.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedaux_pl.algorithms import FedBE
from fedaux_pl.cli.report import publish
from fedaux_pl.engine import isolated_rng
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import create_model, of_head
from fedaux_pl.modules import ClientModule
from fedaux_pl.reports.formats import TableItem
from fedaux_pl.runs.parser import FederationCLI

BASE = ["--config", "fedaux_resnet8", "--config", "scoring/paper"]
T = "(\N{MULTIPLICATION SIGN}T)"  # in each of T rounds
METHODS = ("FedAVG", "FedPROX", "FedDF", "FedBE", "FedAUX, preparation", "FedAUX, training")


class Setting:
    """What the numbers depend on: a federation, which is not run, and the sizes of its data.

    Args:
        federation: A Federation of a method with scores and one architecture for images.
        negatives: |D^-|.
        classes: The number of classes.
    """

    def __init__(self, federation: Any, negatives: int, classes: int) -> None:
        self.federation, self.negatives, self.classes = federation, negatives, classes
        release = federation.algorithm.release
        if release is None or len(federation.clients) > 1:
            raise ConfigurationError(
                "the method must have scores, such as FedAUX, and one architecture, but is "
                f"{federation.algorithm.name} with {', '.join(federation.clients)}"
            )
        self.scoring = release.scoring
        [self.architecture] = federation.clients
        self.clients = len(federation.architectures)  # n
        self.selected = len(federation.select_clients(1))  # C n

    def model(self, classes: int | None = None) -> Any:
        """Return f with random weights; its size and operations do not depend on them."""
        options = self.federation.model_options
        return create_model(self.architecture, classes or self.classes, **options)

    def traffic(self) -> dict[str, int]:
        """Return the bytes that one client sends or receives, counted on the tensors as in a run.

        f in each round and both directions; once h_0, the map of the features (0 for the paper's)
        and the features of D^- (0 without negatives) to the client, and w_i to the server.
        """
        model = self.model()
        state = model.state_dict()
        features = torch.randn(2 * model.feature_dim, model.feature_dim)
        public_map = self.scoring.fit_map(features, features)
        dimension = public_map.rows(features).shape[1]
        negatives = self.negatives if self.scoring.scorer.uses_negatives else 0
        return {
            "f": state_bytes(state),
            "h_0": state_bytes({key: value for key, value in state.items() if not of_head(key)}),
            "map": state_bytes(public_map.tensors()),
            "D^-": feature_bytes(negatives, dimension),
            "w": 8 * dimension,
        }


def method_costs(
    args: list[str],
    samples: int = 50_000,
    auxiliary: int = 100_000,
    classes: int = 10,
    image_size: int = 32,
) -> list[TableItem]:
    """Compare what the methods compute, send and reveal.

    Args:
        args: The options of fit, of FedAUX with one architecture for images.
        samples: The private training samples of all clients.
        auxiliary: |D_aux|.
        classes: The number of classes.
        image_size: The height and width of the images.
    """
    cli = FederationCLI("report", args)
    setting = Setting(cli.model, round(cli.datamodule.negative_fraction * auxiliary), classes)
    return [
        in_words(setting),
        *bytes_of(setting, rounds=cli.trainer.max_epochs),
        text_figures(setting),
        operations(setting, samples, auxiliary, image_size),
    ]


def in_words(setting: Setting) -> TableItem:
    """Return the paper's table."""
    scoring = setting.scoring
    privacy, uses_negatives = scoring.privacy, scoring.scorer.uses_negatives
    guarantee = "none: no noise"
    if privacy.epsilon is not None:
        guarantee = f"({privacy.epsilon:g}, {privacy.delta:g})-DP of D_i"
    if scoring.flaw:
        guarantee = f"none: {scoring.flaw}"
    head = "logistic regression of D_i against D^-" if uses_negatives else "features, their mean"
    sent = "D^- as features" if uses_negatives else "feature map"
    train, proximal = f"local training {T}", f"local training, proximal term {T}"
    average, distill = f"averaging {T}", f"averaging, distillation {T}"
    sampled, h0 = f"averaging, sampling, distillation {T}", "pre-training of h_0, scores s_i"
    up, down, loss = f"model f_i {T}", f"model f {T}", f"that of f_i {T}"
    rows = [
        ["clients compute", train, proximal, train, train, head, train],
        ["server computes", average, average, distill, sampled, h0, distill],
        ["client → server", *4 * [up], "scoring head w_i", up],
        ["server → client", *4 * [down], f"h_0, {sent}", down],
        ["privacy loss", *4 * [loss], guarantee, loss],
        ["assumptions", "none", "none", *4 * ["auxiliary data"]],
    ]
    caption = (
        "What the methods compute, send and reveal in T rounds, each client once or in each of "
        "its rounds; the privacy loss of sending models is not bounded by any of them."
    )
    return TableItem("comparison", caption, pd.DataFrame(rows, columns=["", *METHODS]))


def bytes_of(setting: Setting, rounds: int) -> list[TableItem]:
    """Return the bytes of one client, and those of all clients in all rounds."""
    traffic = setting.traffic()
    k, once = traffic["w"] // 8, "server → client, once"
    rows = [
        ["model f", "server → client, a round", "|f|", traffic["f"], "all"],
        ["model f_i", "client → server, a round", "|f|", traffic["f"], "all"],
        ["scoring head w_i", "client → server, once", f"8 · {k}", traffic["w"], "FedAUX"],
        ["h_0", once, "|f| - |g|", traffic["h_0"], "FedAUX"],
        ["feature map", once, "center, directions", traffic["map"], "FedAUX"],
        ["D^- as features", once, f"4 · {k} · {setting.negatives:,}", traffic["D^-"], "FedAUX"],
    ]
    caption = (
        "What one client sends and receives, in MB of 10⁶ bytes, counted on the tensors of "
        f"{setting.architecture} for {setting.classes} classes, with BatchNorm's statistics: "
        "weights have 4 bytes, a released head 8. Clients of the methods +P receive h_0, too."
    )
    texts = [[what, way, size, mb(count), who] for what, way, size, count, who in rows if count]
    header = ["", "direction", "bytes", "MB", "methods"]
    n, m = setting.clients, setting.selected
    every = m * rounds * traffic["f"]
    received = [key for key in ("h_0", "map", "D^-") if traffic[key]]
    up, down = n * traffic["w"], n * sum(traffic[key] for key in received)
    formula = f"C n T |f| + n ({' + '.join(f'|{key}|' for key in received)})"
    ratio = (2 * every + up + down) / (2 * every)
    totals = [
        ["FedAVG, FedPROX, FedDF, FedBE", *2 * ["C n T |f|"], *2 * [mb(every)], "1"],
        ["FedAUX", "C n T |f| + n |w|", formula, mb(every + up), mb(every + down), f"{ratio:.3f}"],
    ]
    about = (
        f"All clients together: n = {n}, C n = {m} a round, T = {rounds}. The preparation of "
        f"FedAUX costs as much as {(up + down) / (2 * m * traffic['f']):.1f} rounds."
    )
    ways = ["to the server", "to the clients"]
    columns = ["", *ways, *(f"{way}, MB" for way in ways), "ratio"]
    return [
        TableItem("bytes", caption, pd.DataFrame(texts, columns=header)),
        TableItem("total_bytes", about, pd.DataFrame(totals, columns=columns)),
    ]


def text_figures(setting: Setting) -> TableItem:
    """Return the two figures of appendix D, and what they become in this setting."""
    model, own = setting.model(classes=100), setting.model()
    parameters, few = (state_bytes(dict(f.named_parameters())) for f in (model, own))
    negatives = feature_bytes(12_000, model.feature_dim)
    rows = [
        [f"D^-, 12,000 {T[1]} {model.feature_dim} {T[1]} 4 bytes", "24.58", mb(negatives, 3)],
        [f"parameters of {setting.architecture}, 100 classes", "19.79", mb(parameters, 3)],
        ["the same with BatchNorm's statistics", "", mb(state_bytes(model.state_dict()), 3)],
        [f"parameters, {setting.classes} classes", "", mb(few, 3)],
    ]
    caption = (
        "The two figures of the paper's text (appendix D, ResNet-8 and CIFAR-100) in MB. The "
        "second one agrees with ours if it was cut off after two digits, not rounded. It counts "
        "no BatchNorm statistics, which are sent as well."
    )
    return TableItem(
        "figures_of_the_text", caption, pd.DataFrame(rows, columns=["", "paper", "ours"])
    )


def operations(setting: Setting, samples: int, auxiliary: int, image_size: int) -> TableItem:
    """Return the floating-point operations of the stages."""
    federation, model, classes = setting.federation, setting.model(), setting.classes
    channels = federation.model_options.get("in_channels", 3)
    images = torch.zeros(2, channels, image_size, image_size, dtype=torch.uint8)
    labels = torch.zeros(2, dtype=torch.long)
    epochs = federation.pretraining.epochs
    flops = {
        "F": count_flops(model.eval(), images),
        "F_train": count_flops(ClientModule(model, num_classes=classes), images, labels),
        "F_pre": count_flops(federation.pretraining.create_module(model), images),
    }
    held, distill = samples / setting.clients, auxiliary - setting.negatives
    sizes = {"|D_i|": held, "|D_distill|": distill, "|D_aux|": auxiliary}
    teachers, times = setting.selected, federation.distillation.epochs
    client, server = "client, a round", "server, a round"
    stages = [
        ("local training", client, federation.local.epochs, "|D_i|", "F_train", "all"),
        ("teachers", server, teachers, "|D_distill|", "F", "FedDF, FedAUX"),
        ("teachers", server, teachers + FedBE().samples + 1, "|D_distill|", "F", "FedBE"),
        ("distillation", server, times, "|D_distill|", "F_train", "FedDF, FedBE, FedAUX"),
        ("pre-training of h_0", "server, once", epochs, "|D_aux|", "F_pre", "FedAUX"),
        ("features of D_i", "client, once", 1, "|D_i|", "F", "FedAUX"),
        ("features of D_aux", "server, once", 1, "|D_aux|", "F", "FedAUX"),
    ]
    texts = [
        [what, who, f"{n} · {size} · {f}", f"{n * sizes[size] * flops[f] / 1e12:,.2f}", methods]
        for what, who, n, size, f, methods in stages
    ]
    caption = (
        "Floating-point operations, in TFLOP, of matrix products and convolutions: an image of "
        f"{image_size}x{image_size} pixels takes F = {flops['F'] / 1e9:.3f} GFLOP in a prediction, "
        f"F_train = {flops['F_train'] / 1e9:.3f} in a training step and F_pre = "
        f"{flops['F_pre'] / 1e9:.3f} in one of the pre-training. |D_i| = {held:,.0f}, "
        f"|D_distill| = {distill:,}, |D_aux| = {auxiliary:,}. Averaging, the proximal "
        "term and the fit of w_i are negligible. A method +P pre-trains h_0 as FedAUX does."
    )
    header = ["", "who, how often", "formula", "TFLOP", "methods"]
    return TableItem("operations", caption, pd.DataFrame(texts, columns=header))


def count_flops(module: nn.Module, *batch: Tensor) -> float:
    """Return the operations of a prediction or, of a LightningModule, a training step per image.

    Matrix products and convolutions are counted, with two operations per multiply-add.
    """
    # counting must not advance the random numbers of the process
    with isolated_rng(0), FlopCounterMode(display=False) as counter:
        if isinstance(module, pl.LightningModule):
            module.train().training_step(batch, 0).backward()
        else:
            module(*batch)
    return float(counter.get_total_flops() / len(batch[0]))


def mb(count: int, digits: int = 2) -> str:
    """Return a number of bytes in MB."""
    return f"{count / 1e6:,.{digits if count >= 1e5 else 4}f}"


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title, allow_abbrev=False)
    parser.add_argument("--output", type=Path, default=Path("logs/reports/table4"))
    options, of_fit = parser.parse_known_args()
    publish(options.output, title, method_costs([*BASE, *of_fit]), note=note)
