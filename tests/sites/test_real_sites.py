"""Three site processes with mutual TLS on loopback: the test of CI, and longer ones by a marker."""

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.cli.entry import main
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine.inference import predict_logits
from fedaux_pl.federation import Distillation, Federation, LocalTraining, Pretraining
from fedaux_pl.scoring import MeanScoring, Privacy
from tests import texts
from tests.federations import assert_same, create, split, weights
from tests.federations import fit as fit_locally
from tests.sites.loopback import Given
from tests.sites.processes import Federated, provision, tokens

AUX = {
    "class_path": "FedAUX",
    "init_args": {
        "privacy": {"epsilon": 1.0},
        "scoring": {"class_path": "MeanScoring", "init_args": {"dimensions": 8}},
    },
}
METHODS = {
    "FedAUX": (AUX, lambda: FedAUX(privacy=Privacy(1.0), scoring=MeanScoring(dimensions=8))),
    "FedAVG": ({"class_path": "FedAvg"}, FedAvg),
    "FedDF": ({"class_path": "FedDF"}, FedDF),
}
MIXED = {"resnet8": 2, "shufflenet": 1}


PATIENT = {"wait": 200, "timeout": 100, "min_answers": 3}  # with a busy machine


def assert_equal_runs(tmp_path, method, clients, **settings):
    options, create_method = METHODS[method]
    federated = Federated(tmp_path, split(3), options, **PATIENT, **settings)
    federated.config["model"]["clients"] = clients
    local = create(create_method(), clients)
    compare(tmp_path, federated, local)
    return federated, local


def compare(tmp_path, federated, local):
    """Runs a federation over sites and the simulation; both end with the same weights."""
    with federated:
        federated.start_server()
        for number in range(3):
            federated.start_site(number)
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


@pytest.mark.sites
def test_three_site_processes_end_bit_for_bit_as_local_clients(tmp_path, capsys):
    federated, local = assert_equal_runs(tmp_path, "FedAUX", {"resnet8": 3}, evaluate=True)
    # and each site has evaluated every third of the test samples
    test, last = federated.simulation.test_examples, federated.history()[-1]
    right = predict_logits(local.students["resnet8"], test.inputs).argmax(dim=1) == test.targets
    own = [float(right[i::3].float().mean()) for i in range(3)]
    assert [last[f"client_accuracy/site-{i}"] for i in range(3)] == pytest.approx(own)
    assert last["worst_client/accuracy"] == pytest.approx(min(own))
    assert f"accuracy by client: mean {sum(own) / 3:.1%}" in federated.log("server")
    assert "no epsilon covers them" in federated.log("site-2")
    assert main(["sites", "status", f"--root={tmp_path / 'logs'}"]) == 0
    assert capsys.readouterr().out.count("samples, NOT covered by epsilon") == 3


def test_a_member_cannot_pose_as_the_server(tmp_path):
    """gRPC compares the server's certificate with the host of ``--server``, as NVFlare uses it."""
    grpc = pytest.importorskip("grpc")
    drivers = pytest.importorskip("nvflare.fuel.f3.drivers.grpc_driver")
    kits = provision(tmp_path / "sites", ["site-0", "site-1"], 8402)
    own = kits / "site-0" / "startup"
    files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
    trust = drivers.get_grpc_client_credentials({k: str(own / file) for k, file in files.items()})
    states = grpc.ChannelConnectivity
    for name, side, expected in (
        ("site-1", "client", states.TRANSIENT_FAILURE),
        ("localhost", "server", states.READY),
    ):
        kit = kits / name / "startup"
        pair = [(kit / f"{side}.{end}").read_bytes() for end in ("key", "crt")]
        root = (kit / "rootCA.pem").read_bytes()
        server = grpc.server(ThreadPoolExecutor(1))
        credentials = grpc.ssl_server_credentials([pair], root, require_client_auth=True)
        port = server.add_secure_port("localhost:0", credentials)
        server.start()
        seen = queue.Queue()
        options = drivers.GRPC_DEFAULT_OPTIONS
        with grpc.secure_channel(f"localhost:{port}", trust, options=options) as channel:
            channel.subscribe(seen.put, try_to_connect=True)
            while (state := seen.get()) not in (states.READY, states.TRANSIENT_FAILURE):
                pass
            assert state == expected, name
        server.stop(0)


@pytest.mark.sites
@pytest.mark.parametrize(
    ("method", "clients"), [("FedAVG", {"resnet8": 3}), ("FedDF", MIXED), ("FedAUX", MIXED)]
)
def test_methods_end_bit_for_bit_as_local_clients(method, clients, tmp_path):
    assert_equal_runs(tmp_path, method, clients)


@pytest.mark.sites
@pytest.mark.parametrize("method", ["FedAVG", "FedAUX"])
def test_text_encoders_of_two_sizes(method, tmp_path):
    inputs, labels, classes = texts.ids(*([8, 12, 20] * 16)), torch.arange(48) % 3, ("a", "b", "c")
    source = Given(Examples(inputs, labels, classes), Examples(inputs[:12], labels[:12], classes))
    auxiliary = Given(auxiliary=texts.ids(*([10, 14] * 12), seed=1))
    data = FederatedDataModule(source, auxiliary, num_clients=3, alpha=100.0)
    options, create_method = METHODS[method]
    federated = Federated(tmp_path, data, options, source=tokens, **PATIENT)
    federated.config["data"]["classes"] = list(classes)
    federated.config["model"] |= {
        "clients": {"encoder": 2, "encoder-wide": 1},
        "local": {"batch_size": 8},
        "distillation": {"batch_size": 8},
        "pretraining": {"epochs": 1, "batch_size": 8},
        "model_options": {
            "mask_id": 4,
            "encoder": {"config": texts.CONFIG},
            "encoder-wide": {"config": texts.CONFIG | {"hidden_size": 24}},
        },
    }
    own = {k: federated.config["model"][k] for k in ("clients", "participation", "model_options")}
    local = Federation(
        create_method(),
        local=LocalTraining(batch_size=8),
        distillation=Distillation(batch_size=8),
        pretraining=Pretraining(epochs=1, batch_size=8),
        **own,
    )
    compare(tmp_path, federated, local)
