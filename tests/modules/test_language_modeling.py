"""Language modeling: its losses equal those of a loop over tokens, and training lowers them."""

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedaux_pl import (
    LanguageModeling,
    OptimizerSettings,
    SimCLR,
    ViewSettings,
    create_model,
    load_backbone,
)
from fedaux_pl.federation import Pretraining
from fedaux_pl.functional.masking import mask_tokens
from tests.texts import CONFIG, encoder, ids

OPTIONS = {"config": CONFIG, "mask_id": 4}


def test_the_masked_loss_is_that_of_a_loop():
    module = LanguageModeling(encoder()).eval()
    masked = mask_tokens(ids(20, 9, 4, 2), 0.3, 0, 4, 60)
    states = module.backbone.states(masked.ids)
    losses = []
    for row in range(4):
        for place, position in enumerate(masked.positions[row]):
            if masked.weights[row, place]:
                vector = module.transform(states[row, position])
                logits = [vector @ token for token in module.backbone.token_embedding]
                logits = torch.stack(logits) + module.bias
                losses.append(-logits.log_softmax(0)[masked.targets[row, place]])
    assert len(losses) == 8  # 5 of 18, 2 of 7, 1 of 2
    torch.testing.assert_close(module.masked_loss(masked), torch.stack(losses).mean())


def test_the_next_token_loss_is_that_of_a_loop():
    module = LanguageModeling(encoder(), objective="next").eval()
    x = ids(8, 5, width=12)
    losses = []
    for row in x:
        text = row[row != 0]
        for end in range(1, len(text)):
            states = module.backbone.states(text[None, :end], causal=True)
            logits = module.token_logits(states[0, -1])
            losses.append(F.cross_entropy(logits, text[end].long()))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(module.training_step(x, 0), expected)


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_the_loss_of_empty_texts_is_0(objective):
    module = LanguageModeling(encoder(), objective=objective)
    loss = module.training_step((ids(1, 1),), 0)
    loss.backward()
    assert loss == 0


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_it_learns_and_its_features_load_into_a_classifier(objective, tmp_path):
    pl.seed_everything(0)
    module = LanguageModeling(
        "encoder", objective, optimizer=OptimizerSettings(lr=3e-3), model_options=OPTIONS
    )
    before = module.backbone_state()
    x = ids(*[12] * 64, width=14, vocabulary=12)
    labels = torch.arange(64) % 2
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"check_val_every_n_epoch": 25, "num_sanity_val_steps": 0}
    trainer = pl.Trainer(max_epochs=25, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    loader = DataLoader(TensorDataset(x, labels), 16)
    trainer.fit(module, loader, loader)
    # 7 different tokens: a uniform guess costs log 7 = 1.9; among all 60 tokens log 60 = 4.1
    assert trainer.callback_metrics["train/loss"] < 2.4
    assert 0 <= trainer.callback_metrics["val/knn_accuracy"] <= 1
    state = module.backbone_state()
    assert any(not torch.equal(state[key], before[key]) for key in state)
    model = create_model("encoder", 3, **OPTIONS)
    load_backbone(model, state)
    assert torch.equal(model.eval().features(x), module.eval()(x))
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    again = LanguageModeling.load_from_checkpoint(tmp_path / "module.ckpt").eval()
    assert torch.equal(again(x), module(x))
    assert again.objective == objective


def test_every_parameter_is_trained():
    module = LanguageModeling(encoder())
    module.training_step(ids(20, 20, 20), 0).backward()
    missing = [name for name, value in module.named_parameters() if value.grad is None]
    assert missing == []


@pytest.mark.parametrize("objective", ["masked", "next"])
def test_a_step_does_not_depend_on_values(objective):
    """As a CUDA graph requires: tensors on the meta device have no values."""
    module = LanguageModeling(encoder(), objective=objective).to("meta")
    loss = module.training_step(ids(20, 9, 4, 12).to("meta"), 0)
    loss.backward()
    assert loss.shape == ()
    with pytest.raises(RuntimeError):
        loss.item()


def test_the_inputs_of_a_model_decide_its_pretraining():
    views = ViewSettings(flip=0.0)
    settings = Pretraining(lr=2e-3, temperature=0.3, views=views, objective="next", mask_rate=0.4)
    module = settings.create_module(encoder())
    assert isinstance(module, LanguageModeling)
    assert (module.objective, module.mask_rate, module.hparams.lr) == ("next", 0.4, 2e-3)
    images = settings.create_module(create_model("resnet8", 3, width=0.125))
    assert isinstance(images, SimCLR)
    assert (images.temperature, images.hparams.lr, images.views.settings) == (0.3, 2e-3, views)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "previous"}, "objective: got .*; expected to be masked or next"),
        ({"mask_rate": 0.0}, "mask_rate: got .*; expected to lie strictly"),
        ({"mask_rate": 1.0}, "mask_rate: got .*; expected to lie strictly"),
        ({"model": "resnet8", "model_options": {"width": 0.125}}, "needs an encoder of text"),
        ({"model": "encoder", "model_options": {"config": CONFIG}}, "has no mask token"),
    ],
)
def test_wrong_settings(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        LanguageModeling(**({"model": encoder()} | options))


def test_a_mask_that_is_no_token_is_refused():
    options = {"config": CONFIG, "mask_id": CONFIG["vocab_size"]}
    with pytest.raises(ValueError, match="is no token of the encoder's vocabulary"):
        LanguageModeling("encoder", model_options=options)
    LanguageModeling("encoder", "next", model_options=options)
