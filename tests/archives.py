"""Small archives in the formats of CIFAR-10, STL-10 and SVHN, and a host on loopback for them."""

import hashlib
import io
import pickle
import re
import tarfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
from torchvision import datasets

from fedaux_pl.data.sources import CIFAR10, STL10

CIFAR = "cifar-10-python.tar.gz"
STL = "stl10_binary.tar.gz"


def publish_archives(patch, folder, images=20, unlabeled=40):
    """Write the archives, and have torchvision's classes expect their checksums and sizes."""
    rng = np.random.default_rng(0)
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    content = {}
    for name in batches:
        data = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
        labels = [i % 10 for i in range(images)]
        content[name] = pickle.dumps({"data": data, "labels": labels}, protocol=2)
    classes = {"label_names": [f"class{i}" for i in range(10)]}
    content["batches.meta"] = pickle.dumps(classes, protocol=2)
    _publish(patch, folder, CIFAR10, datasets.CIFAR10, content)
    content = {}
    for part, count in {"train": 5, "test": 5, "unlabeled": unlabeled}.items():
        content[f"{part}_X.bin"] = rng.integers(0, 256, count * 27648, dtype=np.uint8).tobytes()
    for part in ("train", "test"):
        content[f"{part}_y.bin"] = bytes(range(1, 6))
    _publish(patch, folder, STL10, datasets.STL10, content)


def _publish(patch, folder, source, dataset, content):
    with tarfile.open(folder / dataset.filename, "w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(f"{dataset.base_folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    for entries in ("train_list", "test_list"):
        names = [name for name, _ in getattr(dataset, entries)]
        patch.setattr(dataset, entries, [[name, _md5(content[name])] for name in names])
    if hasattr(dataset, "meta"):
        md5 = _md5(content[dataset.meta["filename"]])
        patch.setattr(dataset, "meta", {**dataset.meta, "md5": md5})
    packed = (folder / dataset.filename).read_bytes()
    patch.setattr(dataset, "tgz_md5", _md5(packed))
    patch.setattr(source, "_sizes", {dataset.filename: len(packed)})


def _md5(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Host(ThreadingHTTPServer):
    """Sends the files of a folder, from the position that a request asks for.

    Attributes:
        url: Its address.
        requests: The path and the position of each request.
        cuts: The bytes after which the next responses break off, one each; None for whole ones.
        has_ranges: Whether it can begin at a position.
    """

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = []
        self.cuts = []
        self.has_ranges = True

    def handle_error(self, *_):
        """Print nothing: clients may close a connection."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        host = self.server
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and host.has_ranges else 0
        host.requests.append((self.path, start))
        path = host.folder / self.path.strip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()[start:]
        if not data:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        cut = host.cuts.pop(0) if host.cuts else None
        self.wfile.write(data[:cut])
        self.close_connection = True

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def served(folder):
    """A host of a folder on loopback, within this context."""
    with Host(folder) as host:
        thread = Thread(target=host.serve_forever)
        thread.start()
        try:
            yield host
        finally:
            host.shutdown()
            thread.join()
