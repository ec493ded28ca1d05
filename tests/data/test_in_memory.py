"""Data sets of torch and Hugging Face, and arrays, in place of a source."""

from collections import UserDict

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from fedaux_pl.data import FederatedDataModule, Glosses, InMemory, as_source
from fedaux_pl.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
LABELS = [0, 1, 2, 0, 1, 2]


class Items(Dataset):
    """A torch data set of these items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Hub:
    """The part of ``datasets.Dataset`` that is used: slices are dicts of lists."""

    def __init__(self, features=None, formatted=True, **columns):
        self.columns, self.features, self.formatted = columns, features or {}, formatted
        self.features = dict.fromkeys(columns) | self.features

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        assert isinstance(key, slice)  # row by row is slow
        assert not self.formatted, "with_format(None) gives plain Python values"
        return {name: values[key] for name, values in self.columns.items()}

    def with_format(self, type=None, columns=None):  # noqa: A002 - the name of the library
        assert type is None
        return Hub(self.features, False, **self.columns)


class ClassLabel:
    names = ("ant", "bee", "cat")


def pictures(mode="RGB"):
    return [Image.fromarray(pixels).convert(mode) for pixels in PIXELS]


FORMS = {
    "channels last": (PIXELS, np.array(LABELS)),
    "a list of labels": (PIXELS, LABELS),
    "tensors": (FIRST, torch.tensor(LABELS, dtype=torch.uint8)),
    "items of tensors": TensorDataset(FIRST, torch.tensor(LABELS)),
    "items of arrays": Items(list(zip(PIXELS, LABELS, strict=True))),
    "items of pictures": Items([list(pair) for pair in zip(pictures(), LABELS, strict=True)]),
    "Hugging Face": Hub(image=pictures(), label=LABELS, other=LABELS),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_examples(data):
    for value in ((data, data), {"train": data, "test": data}, UserDict(train=data, test=data)):
        source = as_source("private", value)
        for examples in (source.train(), source.test()):
            assert examples.inputs.dtype == torch.uint8
            assert torch.equal(examples.inputs, FIRST)
            assert examples.labels.tolist() == LABELS
            assert examples.classes == ("0", "1", "2")
        assert source.validation() is None
    assert torch.equal(as_source("auxiliary", data).auxiliary(), FIRST)


def test_auxiliary_data_need_no_labels():
    for data in (PIXELS, FIRST, Items(list(PIXELS)), TensorDataset(FIRST), Hub(image=pictures())):
        assert torch.equal(as_source("auxiliary", data).auxiliary(), FIRST)
        with pytest.raises(DataError, match="InMemory has no labels for its training data"):
            FederatedDataModule(InMemory(data, data)).setup()
    unlabeled = Hub(image=pictures(), label=[None] * 6)
    assert torch.equal(as_source("auxiliary", unlabeled).auxiliary(), FIRST)


def test_class_names_come_from_the_data():
    named = Hub({"label": ClassLabel()}, image=pictures(), label=[0, 0, 2, 0, 0, 2])
    source = InMemory(named, (PIXELS, np.array([1] * 6)))
    assert source.test().classes == source.train().classes == ("ant", "bee", "cat")
    assert source.test().labels.tolist() == [1] * 6
    folder = Items(list(zip(PIXELS, LABELS, strict=True)))
    folder.classes = ["x", "y", "z"]  # as torchvision's data sets have
    assert InMemory(folder).train().classes == ("x", "y", "z")
    fewer = Items([(PIXELS[0], 1), (PIXELS[1], 0)])
    fewer.classes = ["x", "z"]
    assert InMemory(folder, fewer).test().labels.tolist() == [2, 0]
    words = InMemory((PIXELS, np.array(list("babbab"))), (PIXELS[:1], np.array(["b"])))
    assert words.train().classes == ("a", "b")
    assert words.test().labels.tolist() == [1]
    with pytest.raises(DataError, match=r"got 'c'; expected 0 \.\.\. 1 .* \(a, b\)"):
        InMemory(words.parts["train"], (PIXELS[:1], np.array(["c"]))).test()


def test_given_clients_and_validation_data():
    part = (PIXELS, np.array(LABELS))
    data = FederatedDataModule(
        {"train": part, "test": part, "validation": part, "clients": np.array([7, 7, 7, 2, 7, 2])}
    )
    data.setup()
    assert dict(zip(data.client_names, data.client_sizes, strict=True)) == {"2": 2, "7": 4}
    assert len(data.validation_examples) == 6
    column = np.array(list("babbab"), dtype=object)  # as a table of pandas has
    named = InMemory((PIXELS, column), clients=column).train()
    assert named.client_names == named.classes == ("a", "b")
    with pytest.raises(DataError, match="clients: got 1; expected a client for each of 6 samples"):
        InMemory(part, clients=["a"]).train()


def test_images_of_pil():
    gray = [picture.convert("L") for picture in pictures()]
    assert InMemory(Items(gray)).auxiliary().shape == (6, 1, 5, 4)
    mixed = InMemory(Items([*pictures()[:3], *gray[3:]])).auxiliary()
    assert torch.equal(mixed[:3], FIRST[:3])
    assert torch.equal(mixed[3, 0], mixed[3, 2])
    transparent = [picture.convert("RGBA") for picture in pictures()]
    assert torch.equal(InMemory(Items(transparent)).auxiliary(), FIRST)
    deep = Image.fromarray(np.full((5, 4), 40_000, dtype=np.uint16))
    with pytest.raises(DataError, match=r"item 1 of the train data .*more than 8 bits"):
        InMemory(Items([gray[0], deep])).auxiliary()
    with pytest.raises(DataError, match=r"2 sizes, .* \(3, 5, 4\) and \(3, 9, 9\); .*: resize"):
        InMemory(Items([*pictures(), Image.new("RGB", (9, 9))])).auxiliary()


def test_floats_and_token_ids():
    floats = InMemory(PIXELS / 255).auxiliary()
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats, FIRST / 255)
    ids = InMemory(torch.arange(12).view(3, 4)).auxiliary()
    assert (ids.dtype, ids.shape) == (torch.int32, (3, 4))


def test_texts_are_tokenized():
    texts = ["a small bird", "a tree", "a large dish of meat"]
    pads_with_one = torch.nn.Module()
    pads_with_one.pad_id = 1
    for data in (
        Hub(text=texts, label=["x", "y", "x"]),
        Items(list(zip(texts, "xyx", strict=True))),
    ):
        source = InMemory(data, data, max_length=8)
        assert source.train().inputs.shape == (3, 8)
        assert source.train().labels.tolist() == [0, 1, 0]
        assert torch.equal(source.auxiliary(), source.test().inputs)
        assert source.input_format == Glosses(max_length=8).input_format
        with pytest.raises(DataError, match=r"the inputs are texts: pass InMemory\(.* max_length"):
            as_source("auxiliary", data).auxiliary()
        with pytest.raises(DataError, match="pads texts with token 0"):
            source.check_model(pads_with_one)
    images = InMemory(PIXELS)
    assert images.input_format == {}
    images.check_model(pads_with_one)
    with pytest.raises(DataError, match="the inputs are no texts: leave out max_length"):
        InMemory(PIXELS, max_length=8).auxiliary()
    with pytest.raises(DataError, match="text 1 of the train data is empty"):
        InMemory(Items(["a", " "]), max_length=8).auxiliary()


def test_random_transforms_are_refused():
    class Noisy(Items):
        def __getitem__(self, index):
            return torch.rand(1, 4, 4), index % 2

    with pytest.raises(DataError, match=r"differs when it is read twice, .* random transforms"):
        InMemory(Noisy(LABELS)).train()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((PIXELS, np.array(LABELS[:5])), r"\(5,\); expected int64 of shape \(6,\), one for each"),
        ((PIXELS, np.array(LABELS) / 2), r"float64 of shape \(6,\); expected integers or names"),
        (
            (PIXELS, np.array([0, 5, 9] * 2)),
            "got 0, 5, 9; expected .* 2 for 3 classes: use class names",
        ),
        (
            (PIXELS.astype(np.int64), np.array(LABELS)),
            "got int64; expected uint8 with .* or floats: scale",
        ),
        (Items([(PIXELS[0], 1, 2)]), "item 0 of the train data has 3 parts"),
        (Items([(PIXELS[0], 0), PIXELS[1]]), r"labels: got .*; expected int64 of shape \(2,\)"),
        (Items([({}, 1)]), "item 0 of the train data: got dict; expected an image"),
        (Items([]), "the train data hold no samples"),
        (Hub(img=pictures(), label=LABELS), r"got columns img, label; .*: rename"),
        (Hub(image=pictures(), text=list("abcdef")), "expected `image` or `text`"),
        (5, "got int; expected arrays"),
    ],
)
def test_data_that_cannot_be_used(data, message):
    with pytest.raises(DataError, match=message):
        InMemory(data).train()


def test_test_data_must_be_given():
    with pytest.raises(DataError, match=r"no test data: pass a pair \(training, test\)"):
        FederatedDataModule((PIXELS, np.array(LABELS))).setup()
