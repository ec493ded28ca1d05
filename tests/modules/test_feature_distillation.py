import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from fedaux_pl.data import ViewSettings
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.models import create_model
from fedaux_pl.modules import FeatureDistillation, OptimizerSettings
from tests.modules.conftest import SMALL, assert_bf16_trains_like_32_bits, assert_same_weights
from tests.modules.test_simclr import UNIT

STILL = ViewSettings(min_scale=1.0, flip=0.0, jitter=0.0, grayscale=0.0)


def wide(seed=0):
    torch.manual_seed(seed)
    return create_model("resnet8", 10, in_channels=1, width=0.25)


def small(teacher=None, **options):
    teacher = teacher or wide()
    torch.manual_seed(1)
    return FeatureDistillation("resnet8", teacher, model_options=SMALL, **options)


def cosine(a, b):
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))


def test_the_loss_is_one_minus_the_cosine_of_prediction_and_teacher(digits):
    teacher = wide()
    module = small(teacher, views=STILL).eval()
    images = digits.auxiliary()[:6]
    loss = module.training_step([images, None], 0)
    predictions = module.predictor(module(images)).tolist()
    targets = teacher.eval().features(images).tolist()
    cosines = [cosine(p, t) for p, t in zip(predictions, targets, strict=True)]
    assert loss.item() == pytest.approx(1 - sum(cosines) / 6, rel=1e-4)


def test_a_network_learns_to_predict_its_teacher(trainer, digits):
    teacher = wide()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    module = small(teacher, optimizer=OptimizerSettings(lr=3e-3), views=STILL)
    data = DataLoader(digits.auxiliary()[:256], batch_size=64)
    losses = []
    for epochs in (1, 4):
        fit = trainer(max_epochs=epochs)
        fit.fit(module, data)
        losses.append(fit.callback_metrics["train/loss"].item())
    assert losses[1] < 0.5 * losses[0]
    # neither its weights nor its BatchNorm statistics have moved, also not those of the copy
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        if not name.startswith("head."):
            assert torch.equal(module.teacher.state_dict()[name], tensor), name
    assert all(parameter.requires_grad for parameter in teacher.parameters())


def test_the_teacher_sees_whole_images_once(digits):
    images = digits.auxiliary()[:12]
    module = small(teacher_size=16).eval()
    torch.manual_seed(3)
    loss = module.training_step((images, torch.zeros(12)), 0)  # labels are not used
    targets = module.targets(images)
    enlarged = F.interpolate(images / 255, (16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(targets, module.teacher.eval().features(enlarged))
    labels = torch.arange(12)
    torch.manual_seed(3)
    assert module.training_step((images, labels), 0).item() == pytest.approx(loss.item())
    module.teacher = None
    torch.manual_seed(3)
    assert module.training_step((images, targets), 0).item() == pytest.approx(loss.item(), rel=1e-5)


def test_targets_of_many_images_are_computed_in_parts(digits, monkeypatch):
    images = digits.auxiliary()[:20]
    expected = small().targets(images)
    monkeypatch.setattr("fedaux_pl.modules.feature_distillation._MAX_PIXELS", 7 * 64)
    torch.testing.assert_close(small().targets(images), expected)
    monkeypatch.setattr("fedaux_pl.modules.feature_distillation._MAX_PIXELS", 1)
    torch.testing.assert_close(small().targets(images), expected)


def test_gradients_stop_at_the_teacher(digits):
    module = small()
    module.training_step(digits.auxiliary()[:8], 0).backward()
    assert all(parameter.grad is None for parameter in module.teacher.parameters())
    trained = [*module.backbone.parameters(), *module.predictor.parameters()]
    assert all(parameter.grad is not None for parameter in trained)
    [group] = module.configure_optimizers().param_groups
    assert len(group["params"]) == len(trained)
    assert module.predictor.layers[0].out_features == wide().feature_dim
    assert small(predictor_width=96).predictor.layers[0].out_features == 96


def test_bf16(trainer, digits):
    assert_bf16_trains_like_32_bits(trainer, small, digits.auxiliary()[:256])


def test_a_checkpoint_is_loaded_with_its_teacher(trainer, digits, tmp_path):
    module = small(views=STILL, predictor_width=40)
    fit = trainer()
    fit.fit(module, DataLoader(digits.auxiliary()[:64], batch_size=32))
    fit.save_checkpoint(tmp_path / "f.ckpt")
    again = FeatureDistillation.load_from_checkpoint(tmp_path / "f.ckpt", teacher=wide(5))
    assert_same_weights(module, again)
    assert again.views.settings == STILL
    with pytest.raises(TypeError, match="'teacher'"):
        FeatureDistillation.load_from_checkpoint(tmp_path / "f.ckpt")


def test_refused_batches():
    with pytest.raises(ValueError, match=r"images: got 0 to 255; expected \[0, 1\]"):
        small().check_batch(UNIT * 255)
    colored = create_model("resnet8", 10, width=0.125)
    with pytest.raises(ValueError, match=r"expected images of shape \(N, 3, H, W\)"):
        small(colored).check_batch(UNIT)
    with pytest.raises(ValueError, match="teacher_size: got 0; expected to be an integer"):
        small(teacher_size=0)
    with pytest.raises(ConfigurationError, match=r"cannot read .* with teacher_size 16 \(exp"):
        small(colored, teacher_size=16).targets(UNIT)
    with pytest.raises(TypeError, match="Linear lacks features"):
        small(torch.nn.Linear(4, 4))


def test_a_network_of_others_teaches():
    teacher = create_model("torchvision/shufflenet_v2_x0_5", 10, small_images=False)
    module = FeatureDistillation("resnet8", teacher, teacher_size=64, model_options=SMALL)
    images = torch.rand(2, 3, 32, 32)
    expected = teacher.eval().features(F.interpolate(images, (64, 64), mode="bilinear"))
    torch.testing.assert_close(module.targets(images), expected, rtol=1e-3, atol=1e-4)
