"""Texts in CSV, JSON-lines and plain text files, well-formed and malformed."""

import json
import lzma
from unittest.mock import MagicMock

import pytest
import torch

from fedaux_pl.data import Glosses, TextDraw, TextFiles, TextLayout
from fedaux_pl.data import tokenizer as tokenizer_module
from fedaux_pl.data.tokenizer import FixedLengthTokenizer
from fedaux_pl.errors import DataError, DataNotFoundError
from tests.texts import VOCABULARY

NEWS = """label,title,description,source
2,Fears for pension,"Unions say they are ""disappointed"", after talks.",a
3,,"A second\\team of rocketeers, competing.",b
0,Trial begins (AFP),A youth was due in the dock.,c
1,Won't decide,"All in due time,
she said.",d
"""
TOPICS = ["World", "Sports", "Business", "Sci/Tech"]


def write(path, text):
    with (lzma.open if path.suffix == ".xz" else open)(path, "wt") as file:
        file.write(text)
    return path


def texts(path, **options):
    """TextFiles with these options, of which some are those of the layout or the draw."""

    def take(kind):
        return kind(**{k: options.pop(k) for k in list(options) if k in kind.__match_args__})

    return TextFiles(path, layout=take(TextLayout), draw=take(TextDraw), **options)


def decode(row):
    return FixedLengthTokenizer(None, 8).load().decode(row.tolist(), skip_special_tokens=True)


@pytest.mark.parametrize("name", ["news.csv", "news.csv.xz"])
def test_ag_news_as_distributed(name, tmp_path):
    path = write(tmp_path / name, NEWS)
    source = texts(path, test_path=path, text=["title", "description"])
    source.class_order = TOPICS
    train = source.train()
    assert train.inputs.dtype == torch.int32
    assert train.inputs.shape == (4, 128)
    assert train.targets.tolist() == [2, 3, 0, 1]
    assert train.classes == tuple(TOPICS)
    assert decode(train.inputs[0]).startswith("fears for pension unions say")
    assert decode(train.inputs[1]).startswith("a second")  # which has no title
    assert decode(train.inputs[3]).endswith("all in due time, she said.")
    assert torch.equal(source.test().inputs, train.inputs)
    assert torch.equal(source.auxiliary(), train.inputs)
    source.class_order = ["a", "b"]
    with pytest.raises(DataError, match="expected the classes a, b"):
        source.train()


def test_texts_are_tokenized_in_several_calls_with_a_bar_of_texts(monkeypatch):
    bar = MagicMock()
    monkeypatch.setattr(tokenizer_module, "tqdm", bar)
    monkeypatch.setattr(tokenizer_module, "_TEXTS_PER_CALL", 2)
    tokenize, words = FixedLengthTokenizer(None, 8), ["a", "small bird", "in", "a tree", "sings"]
    alone = torch.cat([tokenize([word]) for word in words])
    assert torch.equal(tokenize(words), alone)
    assert bar.call_args.kwargs["total"] == 5
    updates = bar.return_value.__enter__.return_value.update.call_args_list
    assert [call.args for call in updates[5:]] == [(2,), (2,), (1,)]


def test_ids_are_those_of_the_tokenizer(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"text": "a small bird", "label": "x"}\n')
    tokenizer = FixedLengthTokenizer(None, 8).load()
    (row,) = TextFiles(path, max_length=8).train().inputs.tolist()
    expected = tokenizer("a small bird")["input_ids"]
    assert row == expected + [0] * (8 - len(expected))
    assert (row[0], tokenizer.mask_token_id) == (2, 4)
    (cut,) = TextFiles(path, max_length=4).train().inputs.tolist()
    assert cut == [*expected[:3], 3]
    assert tokenizer.vocab_size == 4000


def test_class_names_are_sorted_alphabetically(tmp_path):
    rows = [{"text": f"text {i}", "label": name} for i, name in enumerate(["bad", "good", "bad"])]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    test = write(tmp_path / "test.jsonl", '{"text": "x", "label": "good"}')
    source = TextFiles(path, test_path=test)
    assert source.train().classes == ("bad", "good")
    assert source.train().targets.tolist() == [0, 1, 0]
    # the classes come from the training data, not from the test file
    assert source.test().classes == ("bad", "good")
    assert source.test().targets.tolist() == [1]
    write(test, '{"text": "x", "label": "fine"}')
    with pytest.raises(DataError, match="labels: got 'fine'; expected the classes bad, good"):
        source.test()


def test_plain_text_is_auxiliary_data(tmp_path):
    text = '### A Title\nOne line. And more! "So?" he said.\n\n  \nAnother line.\n'
    path = write(tmp_path / "t.txt.xz", text)
    lines = texts(path, skip="###").auxiliary()
    assert [decode(row) for row in lines] == [
        "one line. and more! so? he said.",
        "another line.",
    ]
    sentences = texts(path, skip="###", sentences=True)
    assert [decode(row) for row in sentences.auxiliary()][:2] == ["one line.", "and more!"]
    assert len(sentences.auxiliary()) == 5
    assert sentences.train().labels is None
    assert len(texts(path, label=None).train()) == 3
    with pytest.raises(DataError, match="plain text, which has no column 'label'"):
        texts(path).train()


def test_fraction_and_limit(tmp_path):
    rows = "".join(f"{i % 2},text number {i}\n" for i in range(40))
    path = write(tmp_path / "t.csv", "label,text\n" + rows)
    source = texts(path, test_fraction=0.25)
    parts = [
        {decode(row) for row in part} for part in (source.train().inputs, source.test().inputs)
    ]
    assert [len(part) for part in parts] == [30, 10]
    one = texts(path, test_fraction=0.025).test()  # with the classes of the training texts
    assert (len(one), one.classes) == (1, ("0", "1"))
    assert not parts[0] & parts[1]
    few = texts(path, test_fraction=0.25, limit=7)
    assert len(few.train()) == 7
    assert len(few.test()) == 10
    assert {decode(row) for row in few.train().inputs} < parts[0]
    other = texts(path, test_fraction=0.25, limit=7, seed=1).train()
    assert not torch.equal(other.inputs, few.train().inputs)


def test_rows_without_a_text_are_skipped_with_a_note(tmp_path, capsys):
    path = write(tmp_path / "t.csv", "label,text\n0,a\n1,\n1,  \n1,b\n")
    train = TextFiles(path).train()
    message = f"note: {path}: 2 of 4 rows have no text and are skipped, the first in line 3\n"
    assert capsys.readouterr().err == message
    assert train.targets.tolist() == [0, 1]


def test_token_ids_are_cached(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", NEWS)
    first = texts(path, text="description").train()
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]  # no cache among the data

    def fail(*args):
        raise AssertionError("tokenized again")

    monkeypatch.setattr(tokenizer_module.FixedLengthTokenizer, "__call__", fail)
    again = texts(path, text="description").train()
    assert torch.equal(again.inputs, first.inputs)
    assert torch.equal(again.targets, first.targets)
    assert again.classes == first.classes
    for options in ({"max_length": 9}, {"limit": 2}, {"label": None}, {"text": "source"}):
        other = texts(path, **({"text": "description"} | options))
        with pytest.raises(AssertionError, match="tokenized again"):
            other.train()


@pytest.mark.parametrize(
    ("name", "text", "options", "words"),
    [
        ("t.csv", NEWS, {"text": "body"}, "'body' in line 2; its columns are label, title"),
        ("t.csv", NEWS, {"text": "title", "label": "topic"}, "no column 'topic'"),
        ("t.csv", "", {}, "its first line must name the columns"),
        ("t.csv", "\nlabel,text\n0,a\n", {}, r"text \(its first line must name the columns\)$"),
        ("t.csv", "label,text\n", {}, "holds no texts"),
        ("t.csv", "label,text\n,a\n", {}, "no label in line 2"),
        ("t.jsonl", '{"text": "a"}\n', {}, "no column 'label' in line 1; its columns are text"),
        ("t.jsonl", '{"text": "a", "label": 1}\nnonsense', {}, r"text \(line 2 is not JSON: Ex"),
        ("t.jsonl", "\n[1, 2]", {}, "line 2 is no JSON object"),
        ("t.csv.xz", b"no xz", {}, r"cannot be read as text \([^()]*\)$"),
        (
            "t.csv",
            b"label,text\n0,a\n1,\xe9\n",
            {},
            r"\('utf-8' codec can't decode [^()]*\): save it as UTF-8$",
        ),
        ("t.pdf", "a", {}, "expected one of .csv, .tsv"),
    ],
)
def test_files_that_cannot_be_read(name, text, options, words, tmp_path):
    path = tmp_path / name
    path.write_bytes(text) if isinstance(text, bytes) else write(path, text)
    with pytest.raises(DataError, match=words):
        texts(path, **options).train()


def test_missing_file(tmp_path):
    with pytest.raises(DataNotFoundError, match="there is no file of texts at"):
        TextFiles(tmp_path / "no.csv").train()
    path = write(tmp_path / "t.csv", NEWS)
    with pytest.raises(DataError, match=r"set `test_path`, or `draw\.test_fraction`"):
        texts(path, text="title").test()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 2}, "max_length: got .*; expected to be at least 3"),
        ({"limit": 0}, "limit: got .*; expected to be at least 1"),
        ({"test_fraction": 1.0}, "test_fraction: got .*; expected to lie"),
        ({"test_fraction": 0.1, "test_path": "x"}, "set one, not both"),
    ],
)
def test_wrong_settings(options, words):
    with pytest.raises(ValueError, match=words):
        texts("x.csv", **options)


def test_unusable_tokenizers(tmp_path):
    from transformers import PreTrainedTokenizerFast

    inner = FixedLengthTokenizer(None, 8).load().backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path / "no_padding")
    with pytest.raises(DataError, match="has no padding token"):
        Glosses(tmp_path / "no_padding").test()
    options = {"pad_token": "[PAD]", "model_max_length": 16}
    short = PreTrainedTokenizerFast(tokenizer_object=inner, **options)
    short.save_pretrained(tmp_path / "short")
    with pytest.raises(DataError, match="max_length = 32 is more than the 16"):
        Glosses(tmp_path / "short").test()
    assert Glosses(tmp_path / "short", max_length=16).test().inputs.shape == (600, 16)


def test_glosses():
    source = Glosses()
    train, test, auxiliary = source.train(), source.test(), source.auxiliary()
    assert torch.bincount(train.targets).tolist() == [250] * 6
    assert torch.bincount(test.targets).tolist() == [100] * 6
    assert auxiliary.shape == (3000, 32)
    rows = [tuple(row) for part in (train.inputs, test.inputs, auxiliary) for row in part.tolist()]
    assert len(set(rows)) > 5090  # some definitions differ only after 32 tokens
    # hardly any word piece is [UNK]
    assert (auxiliary == 1).sum() < 0.001 * (auxiliary != 0).sum()
    assert Glosses(VOCABULARY).test().inputs.equal(test.inputs)


SITES = "label,text,site\n" + "".join(
    f"{i % 2},text number {i},{'ward 10' if i % 3 else 'ward 2'}\n" for i in range(30)
)


def test_a_column_names_the_clients(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", SITES)
    options = {"client": "site", "test_fraction": 0.2}
    train = texts(path, **options).train()
    assert train.client_names == ("ward 10", "ward 2")
    for row, client, label in zip(train.inputs, train.clients, train.labels, strict=True):
        number = int(decode(row).split()[-1])
        assert train.client_names[client] == ("ward 10" if number % 3 else "ward 2")
        assert label == number % 2
    test = texts(path, **options).test()  # held out, with their clients
    first = int(decode(test.inputs[0]).split()[-1])
    assert test.client_names[test.clients[0]] == ("ward 10" if first % 3 else "ward 2")
    plain = texts(path, test_fraction=0.2).train()
    assert plain.clients is None
    assert torch.equal(plain.inputs, train.inputs)
    monkeypatch.setattr(tokenizer_module.FixedLengthTokenizer, "__call__", None)  # from the cache
    again = texts(path, **options).train()
    assert torch.equal(again.clients, train.clients)
    assert again.client_names == train.client_names


def test_validation_texts(tmp_path):
    path = write(tmp_path / "t.csv", SITES)
    other = write(tmp_path / "v.csv", "label,text\n1,some words\n")
    source = texts(path, client="site", validation_path=other)
    validation = source.validation()
    assert (validation.labels.tolist(), validation.classes) == ([1], ("0", "1"))
    assert validation.clients is None  # no such column
    assert decode(validation.inputs[0]) == "some words"
    assert TextFiles(path).validation() is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "label,text\n0,a\n", r"no column 'site' .* are label, text: .* `layout.client`"),
        ("t.csv", "label,text,site\n0,a,x\n1,b, \n", "no site in line 3: add it"),
        (
            "t.jsonl",
            '{"label": 0, "text": "a", "site": "x\\u0000y"}\n',
            "line 1 has a null character",
        ),
    ],
)
def test_clients_that_are_missing(name, text, words, tmp_path):
    with pytest.raises(DataError, match=words):
        texts(write(tmp_path / name, text), client="site").train()
