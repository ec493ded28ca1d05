"""Write four silos of the embedded digits, whose pictures differ, as arrays for NpzImages.

python tools/digit_silos.py data/digit_silos.npz [--seed 0]

The 1,199 digits that are not auxiliary data are dealt to the silos at random, as pictures of 16x16.
Two silos also rotate each picture by an angle of its own, of up to 20 degrees. A fifth of each silo
is test data.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from fedaux_pl.data import Digits

SILOS = ("plain", "inverted", "dark", "noisy")
ROTATED = ("inverted", "noisy")
SIZE = 16  # of a picture, in pixels
MAX_ANGLE = 20.0  # degrees
NOISE = 40.0  # the standard deviation, of pixels from 0 to 255
TEST = 5  # of so many pictures of a silo, one is test data


def change(pictures: Tensor, silo: str, generator: torch.Generator) -> Tensor:
    """Return the pictures as a silo takes them, shape (N, 1, H, W), uint8."""
    if silo in ROTATED:
        angles = (2 * torch.rand(len(pictures), generator=generator) - 1) * MAX_ANGLE
        bilinear = transforms.InterpolationMode.BILINEAR
        pictures = torch.stack(
            [
                transforms.rotate(picture, float(angle), interpolation=bilinear)
                for picture, angle in zip(pictures, angles, strict=True)
            ]
        )
    if silo == "inverted":
        return 255 - pictures
    if silo == "dark":
        return pictures // 3
    if silo == "noisy":
        noise = NOISE * torch.randn(pictures.shape, generator=generator)
        return (pictures + noise).round().clamp(0, 255).to(torch.uint8)
    return pictures


def create_silos(seed: int) -> dict[str, np.ndarray]:
    """Return the arrays of all silos by the names that NpzImages reads."""
    generator = torch.Generator().manual_seed(seed)
    digits = Digits(size=SIZE)
    parts = [digits.train(), digits.test()]
    pictures = torch.cat([part.inputs[:] for part in parts])
    labels = torch.cat([part.targets for part in parts])
    order = torch.randperm(len(pictures), generator=generator)
    arrays: dict[str, list[np.ndarray]] = {}
    for silo, rows in zip(SILOS, order.chunk(len(SILOS)), strict=True):
        changed = change(pictures[rows], silo, generator)
        cut = len(rows) // TEST
        for part, chosen in (("test", slice(cut)), ("train", slice(cut, None))):
            owners = np.full(len(rows[chosen]), silo)
            arrays.setdefault(f"{part}_x", []).append(changed[chosen].numpy())
            arrays.setdefault(f"{part}_y", []).append(labels[rows[chosen]].numpy())
            arrays.setdefault(f"{part}_client", []).append(owners)
    return {name: np.concatenate(shares) for name, shares in arrays.items()}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    arrays = create_silos(options.seed)
    np.savez_compressed(options.output, **arrays)
    print({name: values.shape for name, values in arrays.items()})


if __name__ == "__main__":
    main()
