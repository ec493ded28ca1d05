"""Digits at four silos whose pictures differ, for golden runs."""

from dataclasses import replace

import torch

from fedaux_pl.data import Digits


class DigitSilos(Digits):
    """The embedded digits: a quarter each is plain, inverted, dark and noisy."""

    def load(self, part):
        examples = super().load(part)
        if part == "auxiliary":
            return examples
        images = examples.inputs.clone()
        owners = torch.arange(len(images)) % 4
        noise = torch.randint(0, 80, images.shape, generator=torch.Generator().manual_seed(0))
        images[owners == 1] = 255 - images[owners == 1]
        images[owners == 2] //= 2
        images[owners == 3] = (images.int() + noise).clamp(max=255).to(torch.uint8)[owners == 3]
        names = ("plain", "inverted", "dark", "noisy")
        return replace(examples, inputs=images, clients=owners, client_names=names)
