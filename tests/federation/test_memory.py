"""A federation ends with the same weights wherever its images are."""

import shutil

import numpy as np
import pytest
from PIL import Image

from fedaux_pl.algorithms import FedAUX
from fedaux_pl.data import Digits, FederatedDataModule, ImageFolder, NpzImages
from fedaux_pl.data.lazy_inputs import LazyInputs
from fedaux_pl.errors import DataError
from tests.federations import assert_same, create, fit, measured, weights


def arrays(folder):
    train, test, auxiliary = Digits().train(), Digits().test(), Digits().auxiliary()
    parts = {"train_x": train.inputs[:64], "train_y": train.labels[:64]}
    parts |= {"test_x": test.inputs[:30], "test_y": test.labels[:30]}
    np.savez(folder / "private.npz", **{name: part.numpy() for name, part in parts.items()})
    np.savez(folder / "auxiliary.npz", train_x=auxiliary[:40].numpy())
    return NpzImages(folder / "private.npz"), NpzImages(folder / "auxiliary.npz")


def pictures(folder):
    train, auxiliary = Digits().train(), Digits().auxiliary()
    for i, (image, label) in enumerate(zip(train.inputs[:80], train.labels, strict=False)):
        path = folder / f"private/{'ab'[i % 2]}/{label}/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(path)
    (folder / "auxiliary").mkdir()
    for i, image in enumerate(auxiliary[:40]):
        Image.fromarray(image[0].numpy()).save(folder / f"auxiliary/{i}.png")
    options = {"size": 8, "channels": 1}
    private = {"clients": "first_level", "test_fraction": 0.2, **options}
    return ImageFolder(folder / "private", **private), ImageFolder(folder / "auxiliary", **options)


@pytest.mark.parametrize("make", [arrays, pictures])
def test_the_same_weights_from_device_host_and_disk(tmp_path, make):
    files, results, loaded = tmp_path / "files", {}, {}
    files.mkdir()
    private, auxiliary = make(files)
    lazy = ("host", "disk") if make is arrays else ("disk",)
    for memory in ("device", *lazy):
        options = {"num_clients": 2, "alpha": 1.0, "validation_fraction": 0.1, "memory": memory}
        options["distill_fraction"] = 0.5 if make is arrays else 1.0
        data = FederatedDataModule(private, auxiliary, **options)
        federation = create(FedAUX(), {"resnet8": 2})
        fit(tmp_path / memory, federation, 1, data)
        results[memory], loaded[memory] = federation, data
        for inputs in (data.client(0).inputs, data.negative_inputs):
            assert isinstance(inputs, LazyInputs) == (memory != "device")
    for memory in lazy:
        assert_same(weights(results[memory]), weights(results["device"]))
        assert measured(results[memory]) == measured(results["device"])
    shutil.rmtree(files)  # only what stays on disk needs them
    for memory, data in loaded.items():
        for inputs in (data.distill_inputs, data.validation_examples.inputs):
            if memory == "disk":
                with pytest.raises(DataError, match=r"cannot (be read anymore|read the image)"):
                    inputs[:1]
            else:
                assert len(inputs[:1]) == 1
