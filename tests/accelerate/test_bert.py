"""Fast encoders: when they are used, and on a GPU, that they agree with plain ones."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from fedaux_pl.accelerate.bert.fast_encoder import (
    FastEncoder,
    FastTinyBERT,
    can_fuse,
    is_unmodified,
)
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.recording.cuda_graphs import CudaGraphs
from fedaux_pl.accelerate.recording.runner import CudaRunner
from fedaux_pl.accelerate.versions import speed_up
from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.models import create_model
from fedaux_pl.modules import (
    ClientModule,
    DistillationModule,
    LanguageModeling,
    OptimizerSettings,
)
from tests.accelerate.bert_reference import fused_on_the_cpu  # noqa: F401
from tests.accelerate.pairwise import pairwise
from tests.engine.test_stage import within
from tests.texts import CONFIG, encoder, ids


def bert(**values):
    return encoder(config=CONFIG | values).encoder


def attention(model):
    return model.encoder.layer[0].attention.self


def with_relu(model):
    model.encoder.layer[1].intermediate.intermediate_act_fn = nn.ReLU()


def with_pooler(model):
    model.pooler = nn.Linear(16, 16)


def with_shared_weights(model):
    model.encoder.layer[0].output.dense = model.encoder.layer[1].output.dense


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_fast_version_on_the_cpu(dtype):
    plain = encoder().eval()
    model = speed_up(copy.deepcopy(plain))
    assert type(model) is FastEncoder
    assert type(speed_up(create_model("tinybert", 2, pretrained=False))) is FastTinyBERT
    assert model.state_dict().keys() == plain.state_dict().keys()
    x = ids(4, 20, 9)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        assert torch.equal(model(x), plain(x))
        with torch.no_grad():
            assert torch.equal(copy.deepcopy(model)(x), plain(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: attention(model).register_forward_hook(lambda *args: None),
        lambda model: model.register_forward_pre_hook(lambda *args: None),
        lambda model: model.embeddings.register_full_backward_hook(lambda *args: None),
        lambda model: setattr(attention(model).query, "forward", lambda x: x),
        lambda model: parametrize.register_parametrization(
            attention(model).key, "weight", nn.Identity()
        ),
        lambda model: model.half(),
        lambda model: model.gradient_checkpointing_enable(),
        lambda model: setattr(model.embeddings.LayerNorm, "eps", 1e-3),
        lambda model: setattr(model.embeddings.word_embeddings, "max_norm", 1.0),
        with_relu,
        with_pooler,
        with_shared_weights,
    ],
)
def test_a_modified_bert_is_not_fused(change):
    model = bert().train()
    attention(model).query.requires_grad_(False)
    assert is_unmodified(model)
    assert is_unmodified(copy.deepcopy(model).eval())
    change(model)
    assert not is_unmodified(model)


@pytest.mark.parametrize(
    "values",
    [
        *({"hidden_act": "relu"}, {"hidden_act": "gelu_new"}),
        *({"hidden_size": 12}, {"hidden_size": 160}, {"is_decoder": True}),  # 160: 80 a head
        *({"model_type": kind} for kind in ("roberta", "albert", "electra")),
    ],
)
@pytest.mark.usefixtures("fused_on_the_cpu")
def test_other_configurations_are_not_fused(values):
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_fuse(bert(**values), ids(4, 9))


def test_inputs_that_are_fused(request):
    model = bert(max_position_embeddings=200)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_fuse(model, ids(4, 9))  # no kernels for the CPU
        request.getfixturevalue("fused_on_the_cpu")
        assert can_fuse(model, ids(4, 9))
        assert not can_fuse(model, ids(4, 9)[:0])
        assert can_fuse(model, ids(100, width=128))
        assert not can_fuse(model, ids(100, width=129))  # more keys than a program has room for
        assert not can_fuse(bert(), ids(9, width=41))  # more than there are positions
    assert not can_fuse(model, ids(4, 9))


WIDE = {
    "vocab_size": 500,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 200,
    "max_position_embeddings": 128,
}
SLOW = OptimizerSettings(lr=1e-4)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def texts(count, length, vocabulary=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(5, vocabulary, (count, length), generator=generator, dtype=torch.int32)
    lengths = torch.randint(2, length + 1, (count, 1), generator=generator)
    return (x * (torch.arange(length) < lengths)).cuda()


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("heads", "dtype", "length", "causal"),
    pairwise(
        [
            {},
            {"hidden_size": 104, "num_attention_heads": 4},
            {"hidden_size": 128, "num_attention_heads": 2},  # with 128 tokens the largest tiles
        ],
        [torch.bfloat16, torch.float16],
        [7, 16, 40, 64, 128],
        [False, True],
    ),
)
def test_cuda_states_and_gradients_are_as_exact_as_plain_ones(heads, dtype, length, causal):
    torch.manual_seed(0)
    plain = create_model("encoder", 3, config=WIDE | NO_DROPOUT | heads).cuda().train()
    fast = speed_up(copy.deepcopy(plain))
    x = texts(33, length)
    weight = torch.randn(33, length, plain.feature_dim, device="cuda")
    weight *= (x != 0)[:, :, None]

    def both(network, half):
        network.zero_grad()
        with torch.autocast("cuda", dtype, enabled=half):
            assert can_fuse(network.encoder, x) == half
            states = network.states(x, causal=causal)
        (states * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten().double() for p in network.encoder.parameters()])
        return (states * (x != 0)[:, :, None]).double().detach(), gradient

    results = both(fast, True), both(plain, True), both(plain.double(), False)
    for one, other, known in zip(*results, strict=True):
        assert (one - known).norm() <= 1.5 * (other - known).norm() + 1e-6 * known.norm()


@pytest.mark.cuda
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_cuda_features_of_many_texts(pooling):
    torch.manual_seed(0)
    plain = create_model("encoder", 3, config=WIDE, pooling=pooling).cuda().eval()
    fast = speed_up(copy.deepcopy(plain))
    x = texts(3000, 60)
    with torch.no_grad():
        exact = plain.features(x)
        with torch.autocast("cuda", torch.bfloat16):
            assert can_fuse(fast.encoder, x)
            errors = [(model.features(x) - exact).norm() for model in (fast, plain)]
    assert errors[0] <= 1.5 * errors[1]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "sizes", "causal"),
    pairwise([torch.bfloat16, torch.float16], [(16, 512), (64, 1200), (128, 3000)], [False, True]),
)
def test_cuda_packed_texts_are_those_of_padded_texts(dtype, sizes, causal):
    """With the same dropout masks; the rows are more than the tokens, by more than a text."""
    length, rows = sizes
    torch.manual_seed(0)
    model = speed_up(create_model("encoder", 3, config=WIDE)).cuda().train()
    x = texts(33, length)
    lengths = model.lengths(x)
    assert int(lengths.sum()) + length < rows
    weight = torch.randn(33, length, 96, device="cuda")
    weight *= (torch.arange(length, device="cuda") < lengths[:, None])[:, :, None]

    def both(rows):
        model.zero_grad()
        torch.manual_seed(1)
        with torch.autocast("cuda", dtype), using(packed=(33, rows)):
            states = model.states(x, causal=causal)
        (states * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten().double() for p in model.encoder.parameters()])
        return (states * (weight != 0)).double().detach(), gradient

    for one, other in zip(both(rows), both(0), strict=True):
        assert one.isfinite().all()
        assert (one - other).norm() <= 0.01 * other.norm()
    for one, other in zip(both(rows), both(rows), strict=True):
        assert torch.equal(one, other)
    assert both(int(lengths.sum()) - 1)[0].isnan().any()


def jobs(sizes, epochs, start, *data):
    return [
        Job(
            TensorBatches(*data, batch_size=32, shuffle=True, seed=n, subset=torch.arange(size)),
            epochs, n, start,
        )
        for n, size in enumerate(sizes)
    ]  # fmt: skip


def train(module, made, create_runner=CudaRunner, precision="bf16-mixed"):
    """The losses of jobs."""

    def work(runner):
        return create_runner(runner.trainer).run_all(copy.deepcopy(module), made)

    results = within(work, precision, accelerator="gpu")
    assert all(value.isfinite().all() for result in results for value in result.state.values())
    return [result.loss for result in results]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("precision", "config", "replicas"),
    pairwise(["bf16-mixed", "16-mixed"], [WIDE | NO_DROPOUT, WIDE], [1, 3]),
)
def test_cuda_captured_steps_agree_with_plain_training(precision, config, replicas):
    """With dropout other values are dropped, and only the losses are about the same."""
    torch.manual_seed(0)
    module = ClientModule("encoder", 4, optimizer=SLOW, model_options={"config": config})
    x = texts(320, 64)
    made = jobs([320] * replicas, 6, module.copy_model_state(), x, (x[:, 1] % 4).long())

    def inline(trainer):
        return CudaRunner(trainer, CudaGraphs(torch.device("cuda", 0), overlap=False))

    losses = train(module, made, precision=precision)
    # the seeds give the same random numbers; only cuBLAS may sum in another order
    assert losses == pytest.approx(train(module, made, precision=precision), rel=1e-3)
    assert losses == pytest.approx(train(module, made, inline, precision), rel=1e-3)
    tolerance = 0.05 if config == WIDE else 0.01
    assert losses == pytest.approx(train(module, made, StageRunner, precision), rel=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("clients", "mean"), ("student", "cls"), ("masked", "mean"), ("next", "mean")],
)
def test_cuda_captured_steps_with_packed_texts(kind, pooling, monkeypatch):
    """The same samples and random numbers as without packing, with several graphs in one pool."""
    torch.manual_seed(0)
    options = {"model_options": {"config": WIDE, "mask_id": 4, "pooling": pooling}}
    x = texts(333, 64)
    y = (x[:, 1] % 4).long()
    if kind == "clients":
        module = ClientModule("encoder", 4, optimizer=SLOW, **options)
        made = jobs((333, 300, 170), 4, module.copy_model_state(), x, y)
    elif kind == "student":
        module = DistillationModule("encoder", 4, optimizer=SLOW, **options)
        made = jobs((333,), 4, module.copy_model_state(), x, F.one_hot(y, 4).float())
    else:
        module = LanguageModeling("encoder", kind, **options)
        made = jobs((333,), 4, None, x)
    rows, capture = [], CudaGraphs.capture

    def counted(self, steps, *args):
        rows.append(steps[0].args[-1])
        return capture(self, steps, *args)

    monkeypatch.setattr(CudaGraphs, "capture", counted)
    packed = train(module, made)
    assert len({count for count in rows if count}) >= 2
    assert packed == pytest.approx(train(module, made), rel=1e-3)
    rows.clear()
    monkeypatch.setattr("fedaux_pl.accelerate.recording.runner.find_packable", lambda *args: None)
    assert packed == pytest.approx(train(module, made), rel=0.01)
    assert set(rows) == {0}
