"""Text encoders: their features are those of the transformers library, whatever the padding."""

import itertools
import json
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModel

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import check_model, create_for, create_model, load_backbone, options_of
from fedaux_pl.models import encoder as encoders
from tests.texts import CONFIG, encoder, ids, save

TYPES = ("bert", "roberta", "albert", "electra", "xlm-roberta", "deberta-v2", "mpnet")
MISSING_OPTIONS = {"distilbert": ("intermediate_size", "attention_probs_dropout_prob")}


@pytest.fixture
def folder(tmp_path):
    """A saved encoder."""
    return save(tmp_path / "saved", encoder(seed=5))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_are_those_of_the_library(pooling, folder):
    model = create_model("encoder", 3, source=folder, pooling=pooling).eval()
    reference = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    x = ids(4, 20, 9, 13, 2)
    with torch.no_grad():
        expected = []
        for row in x:  # each text alone and without any padding
            states = reference(row[row != 0][None].long()).last_hidden_state[0]
            expected.append(states.mean(dim=0) if pooling == "mean" else states[0])
        assert_close(model.features(x), torch.stack(expected))
        assert_close(model(x), model.head(torch.stack(expected)))


@pytest.mark.parametrize("model_type", TYPES)
def test_padding_changes_nothing(model_type):
    model = encoder(config=CONFIG | {"model_type": model_type}).eval()
    x = ids(4, 20, 9, 13, pad=model.pad_id)
    longer = torch.cat([x, torch.full((4, 12), model.pad_id, dtype=torch.int32)], dim=1)
    # with gradients a batch is trimmed once; without, it is sorted and trimmed part by part
    features = model.features(longer)
    assert_close(model._encode(longer), features)  # not trimmed
    assert_close(model.features(x), features)
    with torch.no_grad():
        assert_close(model.features(longer), features)


def test_padding_changes_nothing_with_eager_attention(folder):
    """Eager attention takes a mask (N, L) and no causal mask."""
    model = create_model("encoder", 3, source=folder).eval()
    x = ids(4, 20, 9, 13)
    expected = model._encode(x)
    model.encoder.set_attn_implementation("eager")
    assert model.encoder.config._attn_implementation == "eager"
    assert_close(model._encode(x), expected)
    with pytest.raises(ValueError, match="with sdpa attention"):
        model.states(x, causal=True)


@pytest.mark.parametrize("max_tokens", [1, 60, 200, 10_000])
def test_parts_are_as_large_as_max_tokens_allows(monkeypatch, max_tokens):
    monkeypatch.setitem(encoders.TOKENS_PER_PASS, "cpu", max_tokens)
    model = encoder().eval()
    lengths = torch.randint(2, 20, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    x, shapes, states = ids(*lengths), [], model.states
    monkeypatch.setattr(model, "states", lambda part: shapes.append(part.shape) or states(part))
    with torch.no_grad():
        assert_close(model.features(x), encoder().eval()._encode(x))
    assert sum(rows for rows, _ in shapes) == len(x)
    assert all(rows * width <= max_tokens or rows == 1 for rows, width in shapes)
    for (rows, width), (_, following) in itertools.pairwise(shapes):
        assert width <= following
        assert (rows + 1) * following > max_tokens  # one text more would not fit
    if max_tokens == 10_000:
        assert shapes == [(100, max(lengths))]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "albert", "electra", "distilbert"])
def test_gradients_with_one_row_of_token_types_for_all_texts(model_type):
    config = {
        key: value
        for key, value in CONFIG.items()
        if key not in MISSING_OPTIONS.get(model_type, ())
    }
    model = encoder(config=config | {"model_type": model_type}).eval()  # without dropout
    x = ids(4, 20, 9, pad=model.pad_id)
    weight = torch.randn(3, 20, 16, generator=torch.Generator().manual_seed(3))
    weight = weight * (x != model.pad_id)[:, :, None]  # states of padding are not used

    def gradients(states):
        model.zero_grad()
        (states * weight).sum().backward()
        return {name: p.grad.clone() for name, p in model.encoder.named_parameters()}

    expected = gradients(
        model.encoder(input_ids=x, attention_mask=(x != model.pad_id).long()).last_hidden_state
    )
    assert any(gradient.abs().sum() > 0 for gradient in expected.values())
    for name, gradient in gradients(model.states(x)).items():
        size = float(expected[name].abs().max())
        assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5 * size, msg=name)


def test_causal_attention_ignores_later_tokens():
    model = encoder().eval()
    x = ids(20, 20)
    other = x.clone()
    other[:, 8:-1] = 7
    states, changed = model.states(x, causal=True), model.states(other, causal=True)
    assert_close(states[:, :8], changed[:, :8])
    assert not torch.allclose(states[:, 8:], changed[:, 8:])
    assert not torch.allclose(model.states(x)[:, :8], model.states(other)[:, :8])


@pytest.mark.nightly  # a fresh process imports torch and transformers
def test_transformers_are_imported_when_an_encoder_is_made_without_the_network(folder):
    code = f"""
import socket, sys
def refuse(*args, **kwargs): raise SystemExit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
import fedaux_pl.models  # only this: other packages import torchmetrics, which imports transformers
fedaux_pl.models.check_model("tinybert")
assert "transformers" not in sys.modules
model = fedaux_pl.models.create_model("encoder", 3, source={str(folder)!r})
assert "transformers" in sys.modules
print(model.mask_id, model.pad_id, model.vocabulary, model.max_length)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "0", "60", "40"]


def test_weights_are_loaded_or_random(folder):
    def vectors(**options):
        torch.manual_seed(1)
        return create_model("encoder", 3, source=folder, **options).token_embedding

    saved = encoder(seed=5).token_embedding
    assert torch.equal(vectors(), saved)
    assert not torch.equal(vectors(pretrained=False), saved)
    for pretrained in (True, False):
        made = create_for((20,), "encoder", 3, pretrained=pretrained, source=folder)
        assert torch.equal(made.token_embedding, saved) == pretrained


def test_half_precision_weights_are_trained_in_full(tmp_path):
    model = encoder()
    model.encoder.half()
    made = create_model("encoder", 3, source=save(tmp_path, model))
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}


def test_state_dict_round_trip(folder):
    first, second = encoder(seed=1), encoder(seed=2)
    x = ids(7, 12)
    load_backbone(second, first.state_dict())
    first.eval(), second.eval()
    assert torch.equal(first.features(x), second.features(x))
    assert not torch.equal(first(x), second(x))  # the head is not part of h
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert not any("pooler" in key for key in first.state_dict())


def test_tinybert_equals_the_papers():
    model = create_model("tinybert", 4, pretrained=False)
    config = model.encoder.config
    assert (config.num_hidden_layers, model.feature_dim, model.vocabulary) == (4, 312, 30522)
    assert model.mask_id == 103
    # 14.5 million with the pooling layer, as its authors count
    count = sum(p.numel() for p in model.encoder.parameters()) + 312 * 312 + 312
    assert round(count / 1e6, 1) == 14.4
    assert config._attn_implementation == "sdpa"


def test_several_encoders_with_their_own_options():
    names = ["encoder-small", "encoder-wide"]
    options = {"mask_id": 4, names[0]: {"config": CONFIG}, names[1]: {"pooling": "cls"}}
    small = options_of(names[0], names, options)
    assert small == {"mask_id": 4, "config": CONFIG}
    assert create_model(names[0], 3, **small).feature_dim == 16
    assert options_of(names[1], names, options) == {"mask_id": 4, "pooling": "cls"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either source"),
        ({"source": "a/b", "config": {}}, "either source"),
        ({"config": {}, "pooling": "max"}, "'mean' or 'cls'"),
        ({"config": {}, "length": 0}, "length=0 is too small; pass an integer of at least 1"),
        ({"config": {}, "pad_id": -1}, "pad_id=-1 is too small; pass an integer of at least 0"),
    ],
)
def test_wrong_options_raise_before_anything_is_loaded(options, words):
    with pytest.raises(ValueError, match=words):
        check_model("encoder", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": CONFIG | {"hiden_size": 3}}, "has no hiden_size"),
        ({"config": CONFIG | {"model_type": "bird"}}, "bird"),
        ({"config": {"model_type": "gpt2"}}, "'gpt2' is not an encoder"),
        ({"config": CONFIG | {"pad_token_id": None}}, "pass pad_id"),
        ({"config": CONFIG, "length": 41}, "texts of 41 tokens are longer than the 40"),
    ],
)
def test_invalid_configurations(options, words):
    with pytest.raises(ValueError, match=words):
        create_model("encoder", 3, **options)


def test_a_missing_or_empty_folder(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no folder"):
        create_model("encoder", 3, source=tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ConfigurationError,
        match=r"empty cannot be loaded .*: set `source` \(--model.model_options.source",
    ):
        create_model("encoder", 3, source=tmp_path / "empty")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.full((2, 5), 60), "got 60 to 60; expected 0 ... 59, the encoder's vocabulary"),
        (torch.full((2, 5), -1), "got -1 to -1"),
        (torch.ones(2, 41, dtype=torch.int32), "longer than the 40"),
        (torch.zeros(2, 5), "token ids of shape"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "choose a data source for text"),
    ],
)
def test_invalid_inputs(x, words):
    model = encoder()
    for call in (model.check_inputs, model, model.eval()):
        with pytest.raises(ValueError, match=words):
            call(x)


def test_models_for_another_kind_of_data():
    with pytest.raises(ValueError, match="'resnet8' takes images"):
        create_for((20,), "resnet8", 3, pretrained=False)
    with pytest.raises(ValueError, match="'tinybert' takes token ids"):
        create_for((3, 8, 8), "tinybert", 3, pretrained=False)
    assert create_for((1, 8, 8), "resnet8", 3, pretrained=True, width=0.125).inputs == "images"


def test_code_of_a_folder_is_never_run(tmp_path, monkeypatch):
    """Not even if the user answers the library's question with yes."""
    folder = save(tmp_path, encoder())
    (tmp_path / "trap.py").write_text("raise AssertionError('code was run')\n")
    for name, auto in (("config", "AutoConfig"), ("tokenizer_config", "AutoTokenizer")):
        path = folder / f"{name}.json"
        content = json.loads(path.read_text())
        content |= {"model_type": "own", "tokenizer_class": "Own", "auto_map": {auto: "trap.Own"}}
        path.write_text(json.dumps(content))
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(ConfigurationError, match="cannot be loaded by the transformers library"):
        encoders.load_tokenizer(folder)
    with pytest.raises(ConfigurationError, match="cannot be loaded by the transformers library"):
        create_model("encoder", 3, source=folder)


def test_private_values_of_a_configuration_are_refused():
    """The attention can be code on the hub."""
    with pytest.raises(ValueError, match="config: a bert has no _attn_implementation_internal; it"):
        encoder(config=CONFIG | {"_attn_implementation_internal": "someone/attention"})


def test_a_config_without_a_model_type_is_that_of_a_bert(tmp_path):
    """As in the folder of TinyBERT, which has no tokenizer_config.json either."""
    save(tmp_path, encoder(config=CONFIG | {"vocab_size": 4000}))
    tokens = encoders.load_tokenizer(tmp_path)("a small bird")["input_ids"]
    (tmp_path / "tokenizer_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert encoders.load_tokenizer(tmp_path)("a small bird")["input_ids"] == tokens
    assert create_model("tinybert", 3, source=tmp_path)(ids(4, 9)).shape == (2, 3)
