"""Store the results of the golden runs anew, which needs a commit of its own that says why.

python -m tests.golden.write              # all runs
python -m tests.golden.write quickstart   # these runs alone
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.golden import runs, stored

if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(stored.ALL)
    results = stored.results() if sys.argv[1:] else {}
    first_rounds = stored.first_rounds() if sys.argv[1:] else {}
    machine = stored.machine()
    for name in names:
        with tempfile.TemporaryDirectory() as root:
            result = stored.ALL[name](Path(root))
        results[name] = {
            "weights": result.weights,
            "vectors": result.vectors,
            "accuracy": result.accuracy,
            **machine,
        }
        if name in runs.FROM_RANDOM_WEIGHTS:
            first_rounds[name] = result.first_round
        print(name, results[name]["weights"], f"{result.accuracy:.1%}", flush=True)
    content = {"runs": results, "pixels": runs.pixels()}
    stored.RESULTS.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    tensors = {
        f"{name}//{key}": tensor
        for name, sampled in first_rounds.items()
        for key, tensor in sampled.items()
    }
    save_file(tensors, stored.FIRST_ROUNDS)
