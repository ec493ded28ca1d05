"""Three site processes with mutual TLS on loopback: the test of CI, and longer ones by a marker."""

import pytest

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.scoring import Whitened
from tests.federations import assert_same, create, split, weights
from tests.federations import fit as fit_locally
from tests.sites.processes import Federated

AUX = {
    "class_path": "FedAUX",
    "init_args": {
        "epsilon": 1.0,
        "feature_map": {"class_path": "Whitened", "init_args": {"dimensions": 8}},
    },
}
METHODS = {
    "FedAUX": (AUX, lambda: FedAUX(epsilon=1.0, feature_map=Whitened(dimensions=8))),
    "FedAVG": ({"class_path": "FedAvg"}, FedAvg),
    "FedDF": ({"class_path": "FedDF"}, FedDF),
}
MIXED = {"resnet8": 2, "shufflenet": 1}


def assert_equal_runs(tmp_path, method, clients):
    options, create_method = METHODS[method]
    patient = {"wait": 200, "timeout": 100, "min_answers": 3}  # with a busy machine
    with Federated(tmp_path, split(3), options, **patient) as federated:
        federated.config["model"]["clients"] = clients
        federated.start_server()
        for number in range(3):
            federated.start_site(number)
        local = create(create_method(), clients)
        fit_locally(tmp_path / "local", local, rounds=3, data=federated.simulation)
        federated.join()
        over_sites = federated.checkpoint()["state_dict"]
        students = {k.removeprefix("students."): v for k, v in over_sites.items()}
        assert_same({k: students[k] for k in weights(local)}, weights(local))
        for entry in federated.history():
            assert all(entry[f"answered/site-{i}"] == 1.0 for i in range(3))
        log = federated.log("site-1")
        assert "sent: train, round 3" in log
        assert "NOT private" in log
        federated.processes["site-1"].terminate()
        federated.join("site-1")
        assert "ended by SIGTERM" in federated.log("site-1")


def test_three_site_processes_end_bit_for_bit_as_local_clients(tmp_path):
    assert_equal_runs(tmp_path, "FedAUX", {"resnet8": 3})


@pytest.mark.sites
@pytest.mark.parametrize("clients", [{"resnet8": 3}, MIXED], ids=["one", "mixed"])
@pytest.mark.parametrize("method", METHODS)
def test_all_methods_end_bit_for_bit_as_local_clients(method, clients, tmp_path):
    assert_equal_runs(tmp_path, method, clients)
