"""Real processes of ``fedaux-pl fit`` and ``fedaux-pl site`` on loopback, with mutual TLS.

Processes are forks of one that has imported the packages, but not the transport, whose threads
would not survive a fork.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import yaml

from fedaux_pl.cli.entry import main
from fedaux_pl.data import Examples, FederatedDataModule, NpzImages, Source
from fedaux_pl.engine.checkpoints import find_last, load_checkpoint

CONFIG = {
    "trainer": {"accelerator": "cpu", "max_epochs": 3, "enable_progress_bar": False},
    "model": {
        "clients": {"resnet8": 3},
        "participation": 1.0,
        "local": {"batch_size": 16},
        "distillation": {"batch_size": 16, "lr": 1e-3},
        "pretraining": {"epochs": 1, "batch_size": 20},
        "model_options": {"width": 0.125},
    },
}


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def provision(folder, names, port, host="localhost"):
    """Certificates by ``sites init`` and NVFlare's own tool; the folder of all kits."""
    args = [f"--sites={','.join(names)}", f"--server={host}", f"--port={port}"]
    assert main(["sites", "init", *args, f"--folder={folder}"]) == 0
    tool = Path(sys.executable).with_name("nvflare")
    subprocess.run(
        [tool, "provision", "-p", folder / "project.yml", "-w", folder / "kits", "--force"],
        check=True, capture_output=True, env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    return folder / "kits" / "fedaux" / "prod_00"


def write_data(folder, data):
    """The data of a simulation as files: of the server, of each site alone, and of all.

    Returns:
        A simulation that reads the same files.
    """
    data.setup()
    folder.mkdir(parents=True, exist_ok=True)

    def channels_last(images):
        return images.permute(0, 2, 3, 1).numpy()

    classes, test = np.array(data.classes), data.test_examples
    tested = {"test_x": channels_last(test.inputs), "test_y": test.targets.numpy()}
    np.savez(folder / "test.npz", **tested, classes=classes)
    np.savez(folder / "aux.npz", train_x=channels_last(data.auxiliary_inputs))
    parts = [data.client(i) for i in range(data.num_clients)]
    images = [channels_last(own.inputs) for own in parts]
    labels = [own.targets.numpy() for own in parts]
    for i in range(data.num_clients):
        own = {"train_x": images[i], "train_y": labels[i]}
        own |= {key: array[i :: data.num_clients] for key, array in tested.items()}
        np.savez(folder / f"site-{i}.npz", **own, classes=classes)
    np.savez(
        folder / "all.npz",
        train_x=np.concatenate(images),
        train_y=np.concatenate(labels),
        train_client=np.repeat(np.arange(len(parts)), [len(own) for own in parts]),
        classes=classes,
        **tested,
    )
    auxiliary = NpzImages(folder / "aux.npz")
    return FederatedDataModule(NpzImages(folder / "all.npz"), auxiliary)


def npz(path):
    return {"class_path": "NpzImages", "init_args": {"path": str(path)}}


class Tokens(Source):
    """Token ids from a file of arrays."""

    def __init__(self, path):
        self.arrays = np.load(path)

    def train(self):
        return self._read("train")

    def test(self):
        return self._read("test")

    def auxiliary(self):
        return torch.from_numpy(self.arrays["auxiliary"])

    def _read(self, part):
        inputs, labels = (torch.from_numpy(self.arrays[f"{part}_{k}"]) for k in "xy")
        return Examples(inputs, labels, tuple(self.arrays["classes"].tolist()))


def write_texts(folder, data):
    """The token ids of a simulation as files, as ``write_data`` writes images."""
    data.setup()
    folder.mkdir(parents=True, exist_ok=True)
    classes, test = np.array(data.classes), data.test_examples
    tested = {"test_x": test.inputs.numpy(), "test_y": test.targets.numpy()}
    np.savez(folder / "test.npz", **tested, classes=classes)
    np.savez(folder / "aux.npz", auxiliary=data.auxiliary_inputs.numpy())
    for i in range(data.num_clients):
        own = data.client(i)
        given = {"train_x": own.inputs.numpy(), "train_y": own.targets.numpy()}
        np.savez(folder / f"site-{i}.npz", **given, classes=classes)
    return data


def tokens(path):
    return {"class_path": "tests.sites.processes.Tokens", "init_args": {"path": str(path)}}


def log_to(path):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)


def run(args, log, state):
    os.environ |= {"XDG_STATE_HOME": str(state)}
    torch.set_num_threads(1)
    log_to(log)
    print("$ fedaux-pl", *args, flush=True)
    status = main(args)
    sys.stdout.flush()
    os._exit(status)


class Federated:
    """A federation of real processes below one folder.

    Attributes:
        config: What server and sites share; written before each start.
    """

    def __init__(
        self, folder, data, method, rehearsal=True, source=npz, host="localhost", **settings
    ):
        self.folder, self.host, self.port = folder, host, free_port()
        self.names = [f"site-{i}" for i in range(data.num_clients)]
        self.kits = provision(folder / "sites", self.names, self.port, host)
        self.source = source
        write = write_data if source is npz else write_texts
        self.simulation = write(folder / "data", data)
        self.rehearsal, self.evaluate = rehearsal, settings.get("evaluate", False)
        self.config = {k: dict(v) for k, v in CONFIG.items()}
        self.config["model"]["algorithm"] = method
        self.config["data"] = {"auxiliary": source(folder / "data" / "aux.npz")}
        shared = yaml.safe_load((folder / "sites" / "sites.yaml").read_text())
        shared["sites"] |= {"rehearsal": rehearsal, "timeout": 30, "wait": 60, **settings}
        self.sites_yaml = folder / "sites.yaml"
        self.sites_yaml.write_text(yaml.safe_dump(shared))
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["fedaux_pl.cli.verbs", "lightly.loss"])
        self.processes = {}

    def start(self, name, target, *args):
        """Runs a function in a process of its own."""
        self.processes[name] = process = self.context.Process(target=target, args=args)
        process.start()
        return process

    def _start(self, name, args):
        log, state = self.folder / f"{name}.log", self.folder / f"state-{name}"
        return self.start(name, run, args, log, state)

    def _shared(self):
        path = self.folder / "run.yaml"
        written = self.folder / "run.yaml.written"  # another process may be reading the file
        written.write_text(yaml.safe_dump(self.config))
        written.replace(path)
        return f"--config={path}"

    def start_server(self, *more):
        root = f"--trainer.default_root_dir={self.folder / 'logs'}"
        source = self.source(self.folder / "data" / "test.npz")
        own = self.folder / "server.yaml"
        own.write_text(yaml.safe_dump({"data": {"private": source}}))
        args = ["fit", self._shared(), f"--config={own}", f"--config={self.sites_yaml}", root]
        return self._start("server", [*args, *more])

    def site_args(self, number):
        own = self.folder / f"my_data-{number}.yaml"
        source = self.source(self.folder / "data" / f"site-{number}.npz")
        own.write_text(yaml.safe_dump({"data": {"private": source}}))
        args = ["site", self._shared(), f"--config={own}", f"--server={self.host}:{self.port}"]
        args += [f"--certificates={self.kits / f'site-{number}'}"]
        own = {"rehearsal": self.rehearsal, "evaluate": self.evaluate}
        return [*args, *(f"--{name}={str(value).lower()}" for name, value in own.items())]

    def start_site(self, number):
        return self._start(f"site-{number}", self.site_args(number))

    def as_peer(self, kit):
        """The folder, the port and the certificates of somebody who is no ``fedaux-pl``."""
        return self.folder, self.port, self.kits / kit

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, name, text, seconds=90, count=1):
        """Waits until a log has a text ``count`` times."""
        end = time.monotonic() + seconds
        while self.log(name).count(text) < count:
            assert time.monotonic() < end, f"no {text!r} in the log of {name}:\n{self.tails()}"
            time.sleep(0.05)

    def join(self, name="server", seconds=240):
        process = self.processes[name]
        process.join(seconds)
        assert process.exitcode == 0, f"{name}: {process.exitcode}\n{self.tails()}"

    def tails(self):
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def end(self):
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def checkpoint(self):
        return load_checkpoint(find_last(self.folder / "logs"))

    def history(self):
        return self.checkpoint()["federation"]["history"]
