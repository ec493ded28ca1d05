"""Which encoders have a pass in few kernels; and on a GPU, that it gives what plain layers give."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from fedaux_pl.data import TensorBatches
from fedaux_pl.engine import Job, StageRunner
from fedaux_pl.engine.graphs import CudaGraphs
from fedaux_pl.models import create_model
from fedaux_pl.models.bert import selection
from fedaux_pl.models.bert.selection import is_fused, is_ordinary, parameters_of
from fedaux_pl.models.fused import plain_layers
from fedaux_pl.modules import ClientModule, LanguageModelling
from tests.engine.test_stage import within
from tests.texts import CONFIG, encoder, ids

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def bert(**values):
    return encoder(config=CONFIG | values).encoder


def attention(model):
    return model.encoder.layer[0].attention.self


def with_relu(model):
    model.encoder.layer[1].intermediate.intermediate_act_fn = nn.ReLU()


def with_eps(model):
    model.embeddings.LayerNorm.eps = 0.1


def with_pooler(model):
    model.pooler = nn.Linear(16, 16)


def shared(model):
    model.encoder.layer[0].output.dense = model.encoder.layer[1].output.dense


def test_a_bert_as_it_comes_is_ordinary():
    for model in (bert(), bert().eval(), bert(hidden_dropout_prob=0.0)):
        assert is_ordinary(model)
    frozen = bert()
    attention(frozen).query.requires_grad_(False)
    assert is_ordinary(frozen)
    assert is_ordinary(copy.deepcopy(frozen))


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
        lambda model: setattr(model.embeddings.word_embeddings, "max_norm", 1.0),
        lambda model: model.half(),
        lambda model: model.gradient_checkpointing_enable(),
        with_relu,
        with_eps,
        with_pooler,
        shared,
    ],
)
def test_whatever_was_changed_is_left_to_the_modules(change):
    model = bert().train()
    assert is_ordinary(model)
    change(model)
    assert not is_ordinary(model)


@pytest.mark.parametrize(
    "values",
    [{"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"hidden_size": 12}, {"is_decoder": True}],
)
def test_other_configurations_are_left_to_the_modules(values):
    assert not is_ordinary(bert(**values))


@pytest.mark.parametrize("kind", ["roberta", "albert", "electra"])
def test_other_architectures_are_left_to_the_modules(kind, monkeypatch):
    monkeypatch.setattr(selection, "fusable", lambda x: True)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_fused(bert(), ids(4, 9))
        assert not is_fused(bert(model_type=kind), ids(4, 9))


def test_where_it_is_used(monkeypatch):
    model = bert(max_position_embeddings=200)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_fused(model, ids(4, 9))  # there are no kernels for the CPU
        monkeypatch.setattr(selection, "fusable", lambda x: True)
        assert is_fused(model, ids(4, 9))
        assert is_fused(model, ids(100, width=128))
        assert not is_fused(model, ids(100, width=129))  # more keys than a program has room for
        assert not is_fused(bert(), ids(9, width=41))  # more than there are positions
        assert not is_fused(bert(hidden_size=160), ids(4, 9))  # heads of 80 numbers
    assert not is_fused(model, ids(4, 9))
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert not is_fused(model, ids(4, 9))


def test_all_parameters_have_a_place():
    model = bert()
    found = parameters_of(model)
    assert {id(one) for one in found} == {id(one) for one in model.parameters()}
    assert len(found) == len(list(model.parameters())) == 5 + 2 * 16


WIDE = {
    "vocab_size": 500,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 200,
    "max_position_embeddings": 128,
}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def texts(count, length, vocabulary=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(5, vocabulary, (count, length), generator=generator, dtype=torch.int32)
    lengths = torch.randint(2, length + 1, (count, 1), generator=generator)
    return (x * (torch.arange(length) < lengths)).cuda()


@needs_gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [7, 16, 40, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "heads",
    [
        {},
        {"hidden_size": 104, "num_attention_heads": 4},
        {"hidden_size": 128, "num_attention_heads": 2},  # with 128 tokens the largest tiles
    ],
)
def test_cuda_states_and_gradients_are_as_exact_as_plain_ones(heads, dtype, length, causal):
    torch.manual_seed(0)
    model = create_model("encoder", 3, config=WIDE | CALM | heads).cuda().train()
    x = texts(33, length)
    weight = torch.randn(33, length, model.feature_dim, device="cuda")
    weight *= (x != 0)[:, :, None]

    def both(network, half):
        network.zero_grad()
        with torch.autocast("cuda", dtype, enabled=half):
            assert not half or is_fused(network.encoder, x) == fused
            states = network.states(x, causal=causal)
        (states * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten().double() for p in network.encoder.parameters()])
        return (states * (x != 0)[:, :, None]).double().detach(), gradient

    fused = True
    found = both(model, True)
    with plain_layers():
        fused = False
        plain = both(model, True)
        exact = both(model.double(), False)
    for one, other, known in zip(found, plain, exact, strict=True):
        assert (one - known).norm() <= 1.5 * (other - known).norm() + 1e-6 * known.norm()


@needs_gpu
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_cuda_features_of_many_texts(pooling):
    torch.manual_seed(0)
    model = create_model("encoder", 3, config=WIDE, pooling=pooling).cuda().eval()
    x = texts(3000, 60)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found = model.features(x)
        with plain_layers():
            plain = model.features(x)
    with torch.no_grad(), plain_layers():
        exact = model.features(x)
    assert (found - exact).norm() <= 1.5 * (plain - exact).norm()


@needs_gpu
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("config", [WIDE | CALM, WIDE])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_cuda_recorded_steps_are_those_of_plain_layers(precision, config, replicas):
    """With dropout other values are dropped, so that only the outcome is about the same."""
    torch.manual_seed(0)
    module = ClientModule("encoder", 4, lr=1e-4, model_options={"config": config})
    start = module.trained_state()
    x = texts(320, 64)
    y = (x[:, 1] % 4).long()
    jobs = [
        Job(TensorBatches(x, y, batch_size=32, shuffle=True, seed=n), 6, n, start)
        for n in range(replicas)
    ]

    def work(recorder, runner):
        one = copy.deepcopy(module)
        done = StageRunner(runner.trainer, recorder(torch.device("cuda", 0))).run_all(one, jobs)
        return [result.loss for result in done], [result.state for result in done]

    def train(recorder=CudaGraphs):
        return within(partial(work, recorder), precision, accelerator="gpu")

    losses, states = train()
    again, same = train()
    # the seeds give the same numbers, and only cuBLAS may sum in another order
    assert losses == pytest.approx(again, rel=1e-3)
    inline, _ = train(partial(CudaGraphs, overlap=False))
    assert losses == pytest.approx(inline, rel=1e-3)
    with plain_layers():
        plain, _ = train()
    assert losses == pytest.approx(plain, rel=0.05 if config == WIDE else 0.01)
    assert all(value.isfinite().all() for state in (*states, *same) for value in state.values())


@needs_gpu
@pytest.mark.parametrize("objective", ["masked", "next"])
def test_cuda_language_modelling(objective):
    options = {"config": WIDE | CALM, "mask_id": 4}
    torch.manual_seed(0)
    module = LanguageModelling("encoder", objective, model_options=options).cuda().train()
    x = texts(16, 40)

    def gradients():
        module.zero_grad()
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = module._masked(x) if objective == "masked" else module._next(x)
        loss.backward()
        found = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        return torch.cat(found).double()

    found = gradients()
    with plain_layers():
        expected = gradients()
    assert (found - expected).norm() < 0.05 * expected.norm()
