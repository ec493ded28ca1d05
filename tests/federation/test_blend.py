"""The server's new models lie between the averages and the distilled ones."""

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAvg, FedClassMeans, FedDF
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Distillation
from fedaux_pl.federation.blend import CANDIDATES, Vote
from fedaux_pl.federation.client_pool import Votes
from fedaux_pl.federation.state import RunState
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from tests.algorithms.test_equivalences import start_of
from tests.federations import (
    FewDigits,
    assert_close,
    assert_same,
    create,
    fit,
    measured,
    run,
    split,
    weights,
)
from tests.sites.loopback import Given


def blend(value):
    return {"distillation": Distillation(batch_size=16, lr=1e-2, blend=value)}


def held_out(clients=3):
    return split(clients, private=FewDigits(train=90), validation_fraction=0.3)


def test_a_blend_of_0_is_averaging(tmp_path):
    """Distillation changes BatchNorm's counter of batches, and nothing else."""
    averaged = weights(run(tmp_path, FedAvg()))
    blended = weights(run(tmp_path, FedDF(), **blend(0.0)))
    counters = {key for key in averaged if key.endswith("num_batches_tracked")}
    assert_same(
        {key: blended[key] for key in averaged.keys() - counters},
        {key: averaged[key] for key in averaged.keys() - counters},
    )


def test_a_number_takes_the_model_between(tmp_path):
    ends = [weights(run(tmp_path, FedDF(), 1, **blend(end))) for end in (0.0, 1.0)]
    between = weights(run(tmp_path, FedDF(), 1, **blend(0.75)))
    assert_close(between, blend_states(*ends, 0.75))


@pytest.mark.parametrize(
    ("trained", "options"),
    [
        ("full", {"validation_fraction": 0.3}),
        ("head", {"validation_fraction": 0.3}),
        ("full", {}),
        ("full", {"memory": "host"}),
        ("head", {}),
    ],
)
def test_clients_choose_the_likeliest_model(tmp_path, trained, options):
    """By the data that they hold out or, without any, by all that they train on."""
    federations = {}
    for value in (0.0, 1.0, "vote"):
        federation = create(FedDF(), trained=trained, **blend(value))
        fit(tmp_path, federation, 1, split(private=FewDigits(train=90), **options))
        federations[value] = federation
    voted = federations["vote"]
    shares = [voted.data.client(number) for number in range(3)]
    if "validation_fraction" in options:
        shares = [voted.data.validation_examples]
    ends = [federations[end].students["resnet8"].state_dict() for end in (0.0, 1.0)]
    model = voted.students["resnet8"]
    chosen = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    votes = []
    for weight in CANDIDATES:
        model.load_state_dict(blend_states(*ends, weight))
        total = 0.0
        for share in shares:
            with torch.no_grad():
                logits = model.eval()(share.inputs[:])
            total += float(clipped_log_likelihood(logits, share.targets))
        votes.append(total)
    logged = [voted.history[0][f"votes/resnet8/{weight:g}"] for weight in CANDIDATES]
    assert logged == pytest.approx(votes, rel=1e-5)
    best = CANDIDATES[votes.index(max(votes))]
    assert voted.history[0]["blend/resnet8"] == best
    assert_close(chosen, blend_states(*ends, best))


def test_votes_of_earlier_rounds_count_discounted():
    sums = {"a": torch.tensor([0.0, 0.0, -1.0, -9.0, -9.0], dtype=torch.float64)}
    state = {"weight": torch.zeros(1)}

    class Pool:
        def vote(self, *_):
            return Votes(sums, clients=2)

    vote = Vote(Pool(), RunState())
    first = vote.blend(1, {"a": state}, {"a": state})
    assert first.metrics["blend/a"] == 0.0  # of equal ones, the nearest to the average
    vote.state.votes = {"a": torch.tensor([-2.0, -2.0, 0.0, 0.0, 0.0], dtype=torch.float64)}
    second = vote.blend(2, {"a": state}, {"a": state})
    assert second.metrics["blend/a"] == 0.5
    assert vote.state.votes["a"].tolist() == pytest.approx([-1.4, -1.4, -1.0, -9.0, -9.0])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_a_resumed_run_chooses_the_same(tmp_path):
    whole = create(FedDF(), **blend("vote"))
    fit(tmp_path / "whole", whole, 3, held_out())
    saving = {
        "callbacks": [ModelCheckpoint(tmp_path / "saved", "last", every_n_epochs=1)],
        "enable_checkpointing": True,
        "plugins": [AtomicCheckpointIO()],
    }
    fit(tmp_path / "parts", create(FedDF(), **blend("vote")), 2, held_out(), **saving)
    rest = create(FedDF(), **blend("vote"))
    fit(tmp_path / "parts", rest, 3, held_out(), tmp_path / "saved" / "last.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)


def test_a_method_chooses_the_model_that_a_distillation_ends_with(tmp_path):
    class HalfWay(FedDF):
        def new_model(self, theta, average, distilled):
            return blend_states(theta, distilled, 0.5)

    federation = run(tmp_path, FedDF(), 1)
    before = start_of(federation, None).state_dict()
    distilled = federation.students["resnet8"].state_dict()
    half_way = run(tmp_path, HalfWay(), 1).students["resnet8"].state_dict()
    assert_close(half_way, blend_states(before, distilled, 0.5))


@pytest.mark.parametrize(
    ("fraction", "records", "row"),
    [
        (0.3, "the validation data that clients hold out", "data that it holds out"),
        (0.0, "their training data", "its training data"),
    ],
)
def test_votes_are_said_to_be_not_private(tmp_path, fraction, records, row):
    data = split(private=FewDigits(train=90), validation_fraction=fraction)
    federation = run(tmp_path, FedDF(), 1, data, **blend("vote"))
    said = f"NOT private: the clients' votes by {records}, which choose the models"
    assert [line for line in federation.privacy() if "votes" in line] == [said]
    rows = [guarantee.sent for guarantee in federation.guarantees()]
    assert [what for what in rows if "vote" in what] == [f"every round: its vote by {row}"]


def test_votes_by_validation_data_of_the_experimenter_reveal_nothing_private(tmp_path):
    digits = FewDigits()
    validation = digits.digits.train().take(slice(64, 90))
    source = Given(digits.train(), digits.test(), validation=validation)
    federation = run(tmp_path, FedDF(), 1, split(private=source), **blend("vote"))
    assert "votes/resnet8/0" in federation.history[0]
    assert not any("votes" in line for line in federation.privacy())


def test_a_trial_run_votes_by_few_samples_of_each_client(tmp_path):
    federation = create(FedDF(), **blend("vote"))
    data = split(private=FewDigits(train=400))
    fit(tmp_path, federation, 1, data, fast_dev_run=True)
    assert len(data.voting_examples) == sum(data.client_sizes) < 400


@pytest.mark.parametrize("value", [0.5, "vote"])
def test_methods_of_one_message_refuse_a_blend(value):
    with pytest.raises(ConfigurationError, match=f"blend is {value}, but clients of FedClassMeans"):
        create(FedClassMeans(), **blend(value))


def test_methods_without_distillation_ignore_it(tmp_path):
    federation = run(tmp_path, FedAvg(), 1, **blend("vote"))
    assert "blend/resnet8" not in federation.history[0]


@pytest.mark.parametrize("value", [-0.1, 1.5, "votes"])
def test_wrong_blends_are_refused(value):
    with pytest.raises(ValueError, match=r"distillation\.blend: got .*; expected to lie in"):
        Distillation(blend=value)
