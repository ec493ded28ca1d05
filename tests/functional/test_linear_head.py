import torch

from fedaux_pl.functional import fit_linear_head


def test_the_head_of_a_linear_teacher_is_found():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 6, generator=generator) @ torch.randn(6, 6, generator=generator) + 3
    weight = torch.randn(4, 6, generator=generator).double() / 5
    labels = (features.double() @ weight.T + torch.arange(4)).softmax(dim=1)
    found, bias = fit_linear_head(features, labels)
    answers = (features.double() @ found.T + bias).softmax(dim=1)
    torch.testing.assert_close(answers, labels, rtol=0, atol=0.01)


def test_probabilities_of_zero_do_not_decide_the_fit():
    features = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.eye(3)[features.argmax(dim=1)]
    weight, bias = fit_linear_head(features, labels)
    assert weight.isfinite().all()
    answers = (features.double() @ weight.T + bias).argmax(dim=1)
    assert (answers == features.argmax(dim=1)).float().mean() > 0.9


def test_constant_features_give_a_constant_head():
    weight, bias = fit_linear_head(torch.ones(5, 2), torch.tensor([[0.25, 0.75]]).repeat(5, 1))
    assert float(weight.abs().max()) < 1e-6
    torch.testing.assert_close(bias.softmax(dim=0), torch.tensor([0.25, 0.75]).double())
