"""Augmentations: what they do to an image, where their numbers come from, what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms import v2

from fedaux_pl.data import TensorBatches
from fedaux_pl.data.augmentation import Augmentation, check_option, crop, crop_flip, flip
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.seeds import isolated_rng

ERASING = "torchvision.transforms.v2.RandomErasing"
RAND = "torchvision.transforms.v2.RandAugment"


def images(count=19, height=12, width=16):
    generator = torch.Generator().manual_seed(0)
    shape = count, 3, height, width
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def numbers(count, columns):
    return torch.randint(2**31, (count, columns), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_flip_and_crop_are_those_of_a_loop_over_images(dtype):
    x, drawn = images().to(dtype), numbers(19, 3)
    flipped = flip(x, drawn[:, :1])
    cropped = crop(x, drawn[:, 1:], padding=2)
    both = crop_flip(x, drawn, padding=2)
    for image, own, only_flipped, only_cropped, result in zip(
        x, drawn, flipped, cropped, both, strict=True
    ):
        is_mirrored, top, left = (own % torch.tensor([2, 5, 5])).tolist()
        cut_out = F.pad(image, (2, 2, 2, 2))[:, top : top + 12, left : left + 16]
        assert torch.equal(only_flipped, image.flip(-1) if is_mirrored else image)
        assert torch.equal(only_cropped, cut_out)
        assert torch.equal(result, cut_out.flip(-1) if is_mirrored else cut_out)
    assert torch.equal(crop_flip(x, drawn), crop_flip(x, drawn, padding=1))  # 12 // 8


X = images()


def batches(option, seed=3, **options):
    return TensorBatches(
        X, torch.arange(19), batch_size=8, shuffle=True, seed=seed, smallest=2,
        augmentation=Augmentation.create(option), **options,
    )  # fmt: skip


OPTIONS = ["flip", "crop", "crop_flip", RAND, {"flip": None, ERASING: {"p": 0.5}}]


@pytest.mark.parametrize("option", OPTIONS)
def test_batches_follow_from_seed_epoch_and_position(option):
    given, plain = batches(option), batches(None)
    first = list(given)
    torch.rand(5)  # other draws in between change nothing
    for epoch in (0, 1):
        for data in (given, plain):
            data.set_epoch(epoch)
        again, originals = list(given), list(plain)
        assert any(not torch.equal(a[0], b[0]) for a, b in zip(again, originals, strict=True))
        for number, (one, other) in enumerate(zip(again, originals, strict=True)):
            assert torch.equal(one[1], other[1])
            assert torch.equal(one[0], first[number][0]) is (epoch == 0)
    if option == RAND:
        with isolated_rng(derive_seed(derive_seed(3, 1, 1, 2), 0)):
            assert torch.equal(again[2][0], v2.RandAugment()(originals[2][0]))


REFUSED = {
    "torchvision.transforms.RandomHorizontalFlip": "got .*; expected flip, crop, crop_flip or a cl",
    "torchvision.transforms.v2.ToPILImage": "augmentation failed .* of tensors without labels",
    "torchvision.transforms.v2.MixUp": "cannot be created|failed",
    "torchvision.transforms.v2.NoSuch": "such as torchvision.transforms.v2.RandAugment",
    "torchvision.transforms.v2.RandomErase": r"did you mean torchvision.*\.RandomErasing\?",
    "torch.nn.Identity": "got torch.nn.Identity .*; expected flip",
    "flips": r"got flips \(did you mean flip\?\); expected flip, crop, crop_flip or a class",
}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *REFUSED.items(),
        ({"torchvision.transforms.v2.CenterCrop": {"size": 8}}, r"\(4, 3, 8, 8\): leave out"),
        ({"torchvision.transforms.v2.RandomErasing": {"q": 1}}, "cannot be created with {'q': 1}"),
        ({"torchvision.transforms.v2.ToDtype": {"dtype": torch.float32}}, "into torch.float32"),
        ({"crop_flip": {"padding": -1}}, "failed on a batch of images"),
    ],
)
def test_refused_augmentations(option, message):
    with pytest.raises(ConfigurationError, match=message):
        Augmentation.create(option).check(images(4), "local.augmentation")


def test_what_can_be_used():
    for option in OPTIONS:
        check_option(option)
        Augmentation.create(option).check(images(4), "local.augmentation")
    assert Augmentation.create(None) is Augmentation.create({}) is None
    with pytest.raises(ConfigurationError, match="but the data are texts"):
        Augmentation.create("flip").check(torch.zeros(4, 8), "local.augmentation")
    for wrong in (3, ["flip"], {"flip": 1}):
        with pytest.raises(
            ValueError,
            match=r"augmentation: got .*; expected to be flip, crop, crop_flip, a class",
        ):
            check_option(wrong)
