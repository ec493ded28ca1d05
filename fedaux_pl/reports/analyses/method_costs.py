"""Tab. 4 of the paper: operations, bytes and privacy of the methods, in words and in numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.algorithms import FedBE
from fedaux_pl.benchmark.flops import forward_flops, training_flops
from fedaux_pl.callbacks.figures.style import TIMES
from fedaux_pl.cli.parser import parse
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.modules import ClientModule, DistillationModule, create_pretraining
from fedaux_pl.reports.analyses.method_sizes import Sizes, Traffic
from fedaux_pl.reports.items import Item, TableItem

METHODS = ("FedAVG", "FedPROX", "FedDF", "FedBE", "FedAUX, preparation", "FedAUX, training")
_ALL = "all"
_T = f"({TIMES}T)"  # in each of T rounds
_COUNTED = 2  # images on which FLOPs are counted


def method_costs(
    base: Sequence[str],
    *,
    samples: int = 50_000,
    auxiliary: int = 100_000,
    classes: int = 10,
    image_size: int = 32,
) -> list[Item]:
    """Compares what the methods compute, send and reveal. Nothing is run and no data are loaded.

    Args:
        base: The arguments of ``fit``, of FedAUX with one architecture for images.
        samples: The private training samples of all clients.
        auxiliary: |D_aux|.
        classes: The number of classes.
        image_size: The height and width of the images.
    """
    cli = parse("report", base)
    federation: Federation = cli.model
    if federation.algorithm.scoring is None or len(federation.clients) > 1:
        raise ConfigurationError(
            "base must be a method with scores, such as FedAUX, and one architecture, but is "
            f"{federation.algorithm.name} with {', '.join(federation.clients)}"
        )
    if min(samples, auxiliary, classes, image_size) < 1:
        raise ConfigurationError(
            "samples, auxiliary, classes and image_size must be at least 1, but are "
            f"{samples}, {auxiliary}, {classes} and {image_size}"
        )
    rounds = cli.trainer.max_epochs
    if rounds is None or rounds < 1:
        raise ConfigurationError(
            f"trainer.max_epochs, the number of rounds, must be at least 1, but is {rounds}"
        )
    negatives = round(cli.datamodule.negatives * auxiliary)
    sizes = Sizes(federation, rounds, samples, auxiliary, negatives, classes, image_size)
    traffic = Traffic.of(sizes)
    return [
        _in_words(federation),
        _bytes(sizes, traffic),
        _totals(sizes, traffic),
        _text_figures(sizes),
        _operations(sizes),
    ]


def _in_words(federation: Federation) -> TableItem:
    train, average = f"local training {_T}", f"averaging {_T}"
    distill = f"averaging, distillation {_T}"
    scoring = federation.algorithm.scoring
    assert scoring is not None  # noqa: S101 - checked by method_costs
    uses_negatives = scoring.scorer.uses_negatives
    epsilon, delta = scoring.budget.epsilon, scoring.budget.delta
    guarantee = f"({epsilon:g}, {delta:g})-DP of D_i" if epsilon is not None else "none: no noise"
    if scoring.flaw:
        guarantee = f"none: {scoring.flaw}"
    head = "logistic regression of D_i against D^-" if uses_negatives else "features, their mean"
    rows = [
        [
            "clients compute",
            train,
            f"local training, proximal term {_T}",
            train,
            train,
            head,
            train,
        ],
        [
            *("server computes", average, average, distill),
            *(
                f"averaging, sampling, distillation {_T}",
                "pre-training of h_0, scores s_i",
                distill,
            ),
        ],
        ["client → server", *4 * [f"model f_i {_T}"], "scoring head w_i", f"model f_i {_T}"],
        [
            *("server → client", *4 * [f"model f {_T}"]),
            "h_0, " + ("D^- as features" if uses_negatives else "feature map"),
            f"model f {_T}",
        ],
        ["privacy loss", *4 * [f"that of f_i {_T}"], guarantee, f"that of f_i {_T}"],
        ["assumptions", "none", "none", *4 * ["auxiliary data"]],
    ]
    caption = (
        "What the methods compute, send and reveal in T rounds, each client once or in each of its "
        "rounds; the privacy loss of sending models is not bounded by any of them."
    )
    return TableItem("comparison", caption, [["", *METHODS]], rows)


def _bytes(sizes: Sizes, traffic: Traffic) -> TableItem:
    k = traffic.dimension
    rows = [
        ["model f", "server → client, a round", "|f|", _mb(traffic.model), _ALL],
        ["model f_i", "client → server, a round", "|f|", _mb(traffic.model), _ALL],
        ["scoring head w_i", "client → server, once", f"8 · {k}", _mb(traffic.head), "FedAUX"],
        ["h_0", "server → client, once", "|f| - |g|", _mb(traffic.h0), "FedAUX"],
    ]
    if traffic.public_map:
        size = _mb(traffic.public_map)
        rows.append(["feature map", "server → client, once", "center, directions", size, "FedAUX"])
    if traffic.negatives:
        formula = f"4 · {k} · {sizes.negatives:,}"
        size = _mb(traffic.negatives)
        rows.append(["D^- as features", "server → client, once", formula, size, "FedAUX"])
    caption = (
        f"What one client sends and receives, in MB of 10⁶ bytes, counted on the tensors of "
        f"{sizes.architecture} for {sizes.classes} classes, with BatchNorm's statistics: weights "
        "have 4 bytes, a released head 8. Clients of the methods +P receive h_0, too."
    )
    return TableItem("bytes", caption, [["", "direction", "bytes", "MB", "methods"]], rows)


def _totals(sizes: Sizes, traffic: Traffic) -> TableItem:
    n, rounds, m = sizes.clients, sizes.rounds, sizes.selected
    all_rounds = m * rounds * traffic.model
    up, down = n * traffic.head, n * traffic.preparation_down
    named = {"|map|": traffic.public_map, "|D^-|": traffic.negatives}
    once = [name for name, size in named.items() if size]
    rows = [
        ["FedAVG, FedPROX, FedDF, FedBE", *2 * ["C n T |f|"], *2 * [_mb(all_rounds)], "1"],
        [
            "FedAUX",
            "C n T |f| + n |w|",
            f"C n T |f| + n (|h_0| + {' + '.join(once)})",
            _mb(all_rounds + up),
            _mb(all_rounds + down),
            f"{(2 * all_rounds + up + down) / (2 * all_rounds):.3f}",
        ],
    ]
    caption = (
        f"All clients together: n = {n}, C n = {m} a round, T = {rounds}. The preparation of "
        f"FedAUX costs as much as {(up + down) / (2 * m * traffic.model):.1f} rounds."
    )
    header = [
        ["", "to the server", "to the clients", "to the server, MB", "to the clients, MB", "ratio"]
    ]
    return TableItem("total_bytes", caption, header, rows)


def _text_figures(sizes: Sizes) -> TableItem:
    """The two figures of appendix D, and what they become in this setting."""
    model = sizes.model(classes=100)
    dimension = int(model.feature_dim)  # type: ignore[arg-type]
    parameters = state_bytes(dict(model.named_parameters()))
    own = state_bytes(dict(sizes.model().named_parameters()))
    rows = [
        [
            f"D^-, 12,000 {TIMES} {dimension} {TIMES} 4 bytes",
            "24.58",
            _mb(feature_bytes(12_000, dimension), 3),
        ],
        [f"parameters of {sizes.architecture}, 100 classes", "19.79", _mb(parameters, 3)],
        ["the same with BatchNorm's statistics", "", _mb(state_bytes(model.state_dict()), 3)],
        [f"parameters, {sizes.classes} classes", "", _mb(own, 3)],
    ]
    caption = (
        "The two figures of the paper's text (appendix D, ResNet-8 and CIFAR-100) in MB. The "
        "second one agrees with ours if it was cut off after two digits, not rounded. It counts no "
        "BatchNorm statistics, which are sent as well."
    )
    return TableItem("figures_of_the_text", caption, [["", "paper", "ours"]], rows)


def _operations(sizes: Sizes) -> TableItem:
    federation, model = sizes.federation, sizes.model()
    channels = federation.model_options.get("in_channels", 3)
    shape = (_COUNTED, channels, sizes.image_size, sizes.image_size)
    images = torch.zeros(shape, dtype=torch.uint8)
    forward = forward_flops(model, images)
    student: dict[str, Any] = {"num_classes": sizes.classes}
    client = training_flops(ClientModule(model, **student), (images, _labels()))
    soft = torch.full((_COUNTED, sizes.classes), 1 / sizes.classes)
    distilled = training_flops(DistillationModule(model, **student), (images, soft))
    options = dataclasses.asdict(federation.pretraining)
    epochs = options.pop("epochs")
    del options["batch_size"]
    pretrained = training_flops(create_pretraining(model, options), (images,))

    held, distill = sizes.samples / sizes.clients, sizes.auxiliary - sizes.negatives
    teachers, local = sizes.selected, federation.local.epochs
    members = teachers + FedBE().samples + 1
    times, aux = federation.distillation.epochs, sizes.auxiliary
    client_round, server_round = "client, a round", "server, a round"
    rows = [  # what, who, formula, FLOPs, methods
        ("local training", client_round, f"{local} · |D_i| · F_train", local * held * client, _ALL),
        ("teachers", server_round, f"{teachers} · |D_distill| · F", teachers * distill * forward,
         "FedDF, FedAUX"),
        ("teachers", server_round, f"{members} · |D_distill| · F", members * distill * forward,
         "FedBE"),
        ("distillation", server_round, f"{times} · |D_distill| · F_train",
         times * distill * distilled, "FedDF, FedBE, FedAUX"),
        ("pre-training of h_0", "server, once", f"{epochs} · |D_aux| · F_pre",
         epochs * aux * pretrained, "FedAUX"),
        ("features of D_i", "client, once", "|D_i| · F", held * forward, "FedAUX"),
        ("features of D_aux", "server, once", "|D_aux| · F", aux * forward, "FedAUX"),
    ]  # fmt: skip
    caption = (
        f"Floating-point operations, in TFLOP, of matrix products and convolutions: an image of "
        f"{sizes.image_size}x{sizes.image_size} pixels takes F = {forward / 1e9:.3f} GFLOP in a "
        f"prediction, F_train = {client / 1e9:.3f} in a training step and F_pre = "
        f"{pretrained / 1e9:.3f} in one of the pre-training. |D_i| = {held:,.0f}, |D_distill| = "
        f"{distill:,}, |D_aux| = {sizes.auxiliary:,}. Averaging, the proximal term and the fit of "
        "w_i are negligible. A method +P pre-trains h_0 as FedAUX does."
    )
    texts = [
        [what, who, formula, f"{flops / 1e12:,.2f}", which]
        for what, who, formula, flops, which in rows
    ]
    header = [["", "who, how often", "formula", "TFLOP", "methods"]]
    return TableItem("operations", caption, header, texts)


def _labels() -> Tensor:
    return torch.zeros(_COUNTED, dtype=torch.long)


def _mb(count: int, digits: int = 2) -> str:
    return f"{count / 1e6:,.{digits if count >= 1e5 else 4}f}"
