"""Measure a secure sum: CPU seconds of keys, checks, noise, masks and sum, in one process.

``python tools/measure_secure_sum.py [SITES] [NUMBERS]``, by default 20 sites and 35,466 numbers.
"""

import os
import sys
import time

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedaux_pl.functional.discrete_gaussian import discrete_gaussian
from fedaux_pl.sites.secure_sum import Member, add_masked, agreement_digest, pin

SIGMA = 4 * 10**11  # steps

if __name__ == "__main__":
    sites, numbers = (int(text) for text in (*sys.argv[1:3], *("20", "35466")[len(sys.argv) - 1 :]))
    keys = {f"site-{i}": Ed25519PrivateKey.generate() for i in range(sites)}
    pins = {name: pin(key) for name, key in keys.items()}
    agreement = agreement_digest({"pins": pins})
    vectors = {name: torch.randint(-(2**40), 2**40, (numbers,)) for name in keys}
    start, wall = time.process_time(), time.monotonic()
    members = {name: Member(name, key, pins) for name, key in keys.items()}
    messages = [member.keys(agreement, 1) for member in members.values()]
    answers, total = {}, torch.zeros(numbers, dtype=torch.int64)
    for name, member in members.items():
        session = member.open(agreement, 1, messages)
        noisy = vectors[name] + discrete_gaussian(numbers, SIGMA, os.urandom)
        answers[name], total = (session.transcript, session.mask(noisy)), total + noisy
    is_exact = torch.equal(add_masked(answers, list(members)), total)
    seconds = time.process_time() - start, time.monotonic() - wall
    print(f"{sites} sites, {numbers} numbers: exact {is_exact}, {seconds[0]:.2f} s of CPU")
    print(f"{seconds[1]:.2f} s by the clock")
