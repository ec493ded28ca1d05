import pytest
import torch

from fedaux_pl.models import FeatureClassifier, create_model, model_names, register, registry

NAMES = ("mobilenetv2", "resnet8", "shufflenet")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_classes": -3}, ValueError, r"num_classes=-3 .*at least 1"),
        ({"num_classes": 2.0}, TypeError, r"num_classes=2.0 is a float.*integer"),
        ({"num_classes": True}, TypeError, r"num_classes=True is a bool.*integer"),
        ({"in_channels": 0}, ValueError, r"in_channels=0 .*at least 1"),
        ({"width": 0}, ValueError, r"width=0 .*greater than 0"),
        ({"width": "half"}, TypeError, r"width='half' is a str.*greater than 0"),
        ({"norm": "layer"}, ValueError, r"norm='layer' .*'batch', 'group'"),
        ({"std": 0.0}, ValueError, r"std=0.0 .*greater than 0"),
        ({"std": [0.2, -0.2, 0.2]}, ValueError, r"std=-0.2 .*greater than 0"),
        ({"mean": float("inf")}, ValueError, r"mean=inf .*finite"),
        ({"mean": [0.5, 0.5]}, ValueError, r"mean=\[0.5, 0.5\] has 2 .*in_channels=3.*3 of them"),
        ({"mean": "0.5"}, TypeError, r"mean='0' is a str"),
    ],
)
def test_bad_values(options, error, message):
    name = NAMES[len(message) % 3]  # each architecture in turn: they share the checks
    with pytest.raises(error, match=message):
        create_model(name, **{"num_classes": 10, **options})


def test_new_architecture(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))

    @register("pixels")
    class Pixels(FeatureClassifier):
        def __init__(self, num_classes: int, *, in_channels: int = 3, scale: float = 1.0) -> None:
            super().__init__(num_classes, in_channels, in_channels=in_channels)
            self.scale = scale

        def feature_map(self, x):
            return x * self.scale

    assert "pixels" in model_names()
    model = create_model("pixels", 4, in_channels=1, scale=2.0)
    assert type(model) is Pixels
    features = model.features(torch.full((1, 1, 8, 8), 0.75))
    torch.testing.assert_close(features, torch.tensor([[2.0]]))
    with pytest.raises(TypeError, match=r"width=2; .* in_channels, scale"):
        create_model("pixels", 4, width=2)
    with pytest.raises(ValueError, match=r"'pixels' is taken by .*Pixels"):
        register("pixels")(Pixels)
    assert create_model("pixels", 4).scale == 1.0


def test_factory_with_keyword_options_gets_all_options(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))

    @register("thin")
    def thin(num_classes, **options):
        return create_model("resnet8", num_classes, width=0.125, **options)

    assert create_model("thin", 3, in_channels=1).conv1.weight.shape == (8, 1, 3, 3)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet", {}, ValueError, r"'resnet' \(did you mean resnet8\?\); .*net8, shufflenet, "),
        ("ShuffleNet", {}, ValueError, r"\(did you mean shufflenet\?\)"),
        (
            "shufflenet",
            {"widht": 2},
            TypeError,
            r"no option widht=2 \(did you mean width\?\); remove it or use one of in_channels, "
            r"width, groups, norm, mean, std\.$",
        ),
        ("resnet8", {"num_classes": 3}, TypeError, "has no option num_classes=3; remove it"),
    ],
)
def test_misspelled_names(name, options, error, message):
    with pytest.raises(error, match=message):
        registry.check_model(name, **options)


def test_the_options_of_one_model_are_a_mapping():
    with pytest.raises(TypeError, match="options of model 'resnet8': got 3; expected a mapping"):
        registry.options_of("resnet8", ["resnet8"], {"resnet8": 3})
