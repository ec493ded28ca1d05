"""Secure sums: exact, uniform without the last vector, and what a hostile server can try."""

import hashlib
import hmac
import json
import multiprocessing
import os
import stat
from copy import copy
from itertools import combinations, product

import pytest

pytest.importorskip("cryptography")

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedaux_pl.cli.entry import main
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import state_folder
from fedaux_pl.sites import secure_sum
from fedaux_pl.sites.ledger_keys import agreement_digest
from fedaux_pl.sites.secure_sum import (
    TAG,
    KeyMessage,
    Member,
    add_masked,
    pin,
    read_key_message,
    signing_key,
)
from fedaux_pl.sites.wire import RefusalError, read_tensors, write_tensors

NAMES = [f"site-{i}" for i in range(6)]
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
AGREED = agreement_digest({"seed": 0})


def key_of(name):
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def create_members(names=NAMES, colluders=1):
    pins = {name: pin(key_of(name)) for name in names}
    return {name: Member(name, key_of(name), pins, colluders) for name in names}


def ask_keys(members, attempt=1):
    return {name: member.create_key(AGREED, attempt) for name, member in members.items()}


def signed(signer, name, key, attempt=1):
    """A key message as only the owner of the signer can make it."""
    unsigned = KeyMessage(name, key, pin(signer))
    signature = signer.sign(unsigned.statement(AGREED, attempt)).hex()
    return {"name": name, "key": key, "signer": unsigned.signer, "signature": signature}


def mask_all(members, vectors, views, attempt=1):
    """The answers, each site with its own view of the key messages."""
    answers = {}
    for (name, member), vector in zip(members.items(), vectors, strict=True):
        session = member.open(AGREED, attempt, views[name])
        answers[name] = session.transcript, session.mask(vector)
    return answers


def add_anyway(answers):
    """The sum without the checks of an honest server."""
    return add_masked({name: ("", vector) for name, (_, vector) in answers.items()}, list(answers))


def draw(n, length, high=2**40):
    return torch.randint(-high, high, (n, length), generator=torch.Generator().manual_seed(n))


def p_uniform(vector):
    """The p-value of the hypothesis that all bytes are uniform."""
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8), minlength=256)
    return chisquare(counts).pvalue


def refused(code, match):
    return pytest.raises(RefusalError, match=match, check=lambda error: error.code == code)


@pytest.mark.parametrize("n", [20, 100])
def test_the_sum_is_exact(n, monkeypatch):
    checked = {}  # each signature once in all: n * n of them take seconds

    def read_once(message, *others):
        if message["signature"] not in checked:
            checked[message["signature"]] = read_key_message(message, *others)
        return checked[message["signature"]]

    if n == 100:
        monkeypatch.setattr(secure_sum, "read_key_message", read_once)
    members, vectors = create_members([f"site-{i}" for i in range(n)]), draw(n, 50, 2**55)
    messages = ask_keys(members)
    generator = np.random.default_rng(n)  # the order of the list is the server's
    views = {name: list(generator.permutation(list(messages.values()))) for name in members}
    total = add_masked(mask_all(members, vectors, views), list(members))
    assert total.tolist() == vectors.sum(dim=0).tolist()


def _serve(pipe, name, folder, vector):
    """A site as a process of its own: its signing key, X25519 key and masks stay in it."""
    os.environ["XDG_STATE_HOME"] = str(folder / name)
    key = signing_key(name)
    pipe.send_bytes(pin(key).encode())
    member = Member(name, key, json.loads(pipe.recv_bytes()))
    pipe.send_bytes(json.dumps(member.create_key(AGREED, 1)).encode())
    session = member.open(AGREED, 1, json.loads(pipe.recv_bytes()))
    pipe.send_bytes(session.transcript.encode())
    pipe.send_bytes(write_tensors({"masked": session.mask(vector)}))


def test_three_processes_exchange_bytes(tmp_path):
    vectors, context = draw(3, 50), multiprocessing.get_context("fork")
    pipes, processes = {}, []
    for name, vector in zip(NAMES[:3], vectors, strict=True):
        pipes[name], end = context.Pipe()
        processes.append(context.Process(target=_serve, args=(end, name, tmp_path, vector)))
        processes[-1].start()
        end.close()

    def collect():
        assert all(pipe.poll(30) for pipe in pipes.values())
        return {name: pipe.recv_bytes() for name, pipe in pipes.items()}

    def send(content):
        for pipe in pipes.values():
            pipe.send_bytes(json.dumps(content).encode())

    send({name: text.decode() for name, text in collect().items()})
    send([json.loads(text) for text in collect().values()])
    transcripts, bodies, like = collect(), collect(), {"masked": vectors[0]}
    answers = {
        name: (transcripts[name].decode(), read_tensors(bodies[name], like)["masked"])
        for name in pipes
    }
    assert torch.equal(add_masked(answers, NAMES[:3]), vectors.sum(dim=0))
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_a_mask_is_the_one_of_the_protocol(monkeypatch):
    """Transcript, HKDF and signs by hand: members of two releases of the package must agree."""
    secrets = {
        name: X25519PrivateKey.from_private_bytes(name.encode() * 5 + b"..") for name in NAMES[:3]
    }
    members, messages = create_members(NAMES[:3]), {}
    for name, member in members.items():
        monkeypatch.setattr(X25519PrivateKey, "generate", lambda name=name: secrets[name])
        messages[name] = member.create_key(AGREED, 7)
    session = members["site-1"].open(AGREED, 7, list(messages.values()))
    texts = [f"{TAG} {AGREED} 7 {m['name']} {m['key']} {m['signer']}" for m in messages.values()]
    transcript = hashlib.sha256("\n".join([TAG, *texts]).encode()).digest()
    assert session.transcript == transcript.hex()
    assert session.names == NAMES[:3]
    expected = np.array([5, 2**64 - 9], dtype=np.uint64)
    for other, pair in {"site-0": "site-0 site-1", "site-2": "site-1 site-2"}.items():
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(messages[other]["key"]))
        extracted = hmac.digest(transcript, secrets["site-1"].exchange(public), "sha256")
        key = hmac.digest(extracted, f"{TAG} mask {pair}".encode() + b"\x01", "sha256")
        stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(16))
        mask = np.frombuffer(stream, "<u8")
        expected = expected + mask if other == "site-2" else expected - mask
    assert session.mask(torch.tensor([5, -9])).numpy().view(np.uint64).tolist() == expected.tolist()


def test_any_vectors_but_all_are_uniform():
    """Every combination with factors -1, 0, 1 of three of four; without masks each shows data."""
    members, vectors = create_members(NAMES[:4]), draw(4, 4000)
    messages = list(ask_keys(members).values())
    answers = mask_all(members, vectors, dict.fromkeys(members, messages))
    masked = torch.stack([vector for _, vector in answers.values()]).numpy().view(np.uint64)
    plain = vectors.numpy().view(np.uint64)
    for rows in combinations(range(4), 3):
        for factors in product([-1, 0, 1], repeat=3):
            if any(factors):
                weights = np.array(factors)[:, None].astype(np.uint64)
                assert p_uniform((weights * masked[list(rows)]).sum(axis=0)) > 1e-9
                assert p_uniform((weights * plain[list(rows)]).sum(axis=0)) < 1e-100
    assert p_uniform(masked.sum(axis=0)) < 1e-100  # all four: the sum itself


def test_a_swapped_key_is_refused():
    members = create_members()
    messages = ask_keys(members)
    messages["site-1"]["key"] = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with refused("message", "site-1 has not signed this key"):
        members["site-0"].open(AGREED, 1, list(messages.values()))


def test_a_server_that_signs_for_sites_is_stopped_by_pins():
    """It plays all other sites."""
    victim = create_members(NAMES[:3])["site-0"]
    played = [
        signed(STRANGER, name, X25519PrivateKey.generate().public_key().public_bytes_raw().hex())
        for name in NAMES[1:3]
    ]
    with refused("message", "site-1 signs with .* but pins has"):
        victim.open(AGREED, 1, [victim.create_key(AGREED, 1), *played])


@pytest.mark.parametrize(("others", "shown"), [(5, 5), (2, 4)])
def test_split_views_do_not_cancel(others, shown):
    """The first sites are shown fewer keys than the rest: only sites that agree have a sum."""
    members, vectors = create_members(), draw(6, 1000)
    messages = list(ask_keys(members).values())
    views = {name: messages[:shown] if i < others else messages for i, name in enumerate(members)}
    answers = mask_all(members, vectors, views)
    with refused("message", "different lists"):
        add_masked(answers, NAMES)
    assert p_uniform(add_anyway(answers)) > 1e-9
    assert p_uniform(vectors.sum(dim=0)) < 1e-100
    listed = add_anyway({name: answers[name] for name in NAMES[:shown]})
    if shown == others:  # each of the list has seen it
        assert torch.equal(listed, vectors[:shown].sum(dim=0))
    else:
        assert p_uniform(listed) > 1e-9


@pytest.mark.parametrize("enlarged", [False, True])
def test_colluders_cannot_show_a_longer_list_to_one_site(enlarged):
    """Its noise would be less than the others rely on. Two sites give the server their masks."""
    members, vectors = create_members(colluders=2), draw(6, 1000)[:4]
    messages = list(ask_keys(members).values())
    views = dict.fromkeys(NAMES[:4], messages[:5])
    if enlarged:
        views["site-0"] = messages
    honest = {name: members[name] for name in views}
    parts = mask_all(honest, vectors, views)
    for name, view in views.items():
        for message in view[4:]:  # the mask of the site and a colluder, by the colluder's key
            session = copy(members[message["name"]]).open(AGREED, 1, view)
            session._keys = {name: session._keys[name]}
            parts[f"{name} {message['name']}"] = "", session.mask(torch.zeros_like(vectors[0]))
    total = add_anyway(parts)
    if enlarged:
        assert p_uniform(total) > 1e-9
    else:
        assert torch.equal(total, vectors.sum(dim=0))


def test_old_keys_and_attempts_are_refused():
    members = create_members()
    old, new = ask_keys(members, 1), ask_keys(members, 2)
    for attempt in (1, 2, 0, -1, True, 2.5, "3", None, 2**41):
        with refused("message", "must be above 2"):
            members["site-0"].create_key(AGREED, attempt)
    with refused("message", "must be above 8"):
        members["site-0"].create_key(AGREED, 8, after=8)  # restarted: its ledger knows
    with refused("message", "no unused key for this attempt"):
        members["site-0"].open(AGREED, 1, list(old.values()))
    with refused("message", "site-3 has not signed"):
        members["site-0"].open(AGREED, 2, [*(new | {"site-3": old["site-3"]}).values()])


def test_noise_follows_the_list_and_a_smaller_one_is_exact():
    """After a dropout, true or pretended, the next attempt has new keys and fewer sites."""
    members, vectors = create_members(colluders=2), draw(6, 50)
    messages = list(ask_keys(members).values())
    first = members["site-0"].open(AGREED, 1, messages)
    assert first.names == NAMES
    rest = {name: members[name] for name in NAMES[:4]}
    messages = list(ask_keys(rest, 2).values())
    sessions = {name: member.open(AGREED, 2, messages) for name, member in rest.items()}
    assert all(session.names == NAMES[:4] for session in sessions.values())
    answers = {
        name: (session.transcript, session.mask(vector))
        for (name, session), vector in zip(sessions.items(), vectors, strict=False)
    }
    assert torch.equal(add_masked(answers, NAMES[:4]), vectors[:4].sum(dim=0))


@pytest.mark.parametrize(("colluders", "least"), [(1, 3), (2, 4), (3, 5)])
def test_too_few_sites_are_refused(colluders, least):
    members = create_members(colluders=colluders)
    for attempt, count in enumerate((least - 1, least), start=1):
        messages = list(ask_keys(members, attempt).values())[:count]
        if count < least:
            with refused("limits", f"got {count} sites; expected {least} or more"):
                members["site-0"].open(AGREED, attempt, messages)
        else:
            assert len(members["site-0"].open(AGREED, attempt, messages).names) == least


def test_other_settings_are_refused():
    members, other = create_members(), agreement_digest({"seed": 1})
    messages = ask_keys(members)
    messages["site-1"] = create_members()["site-1"].create_key(other, 1)
    with refused("message", "site-1 has not signed this key for this agreement"):
        members["site-0"].open(AGREED, 1, list(messages.values()))
    with refused("settings", "other settings"):
        members["site-2"].open(other, 1, list(messages.values()))


def invent(messages):
    """A site that nobody has pinned."""
    return [*messages.values(), signed(STRANGER, "site-6", "1" * 64)]


def leave_out(messages):
    return [messages[name] for name in NAMES[1:]]


def replace_own(messages):
    """A key that the site has signed in another process; here by its own signing key."""
    return [signed(key_of("site-0"), "site-0", "1" * 64), *leave_out(messages)]


def repeat_name(messages):
    return [*messages.values(), signed(key_of("site-1"), "site-1", "1" * 64)]


def repeat_key(messages):
    copied = signed(key_of("site-1"), "site-1", messages["site-0"]["key"])
    return list((messages | {"site-1": copied}).values())


def repeat_message(messages):
    return [*messages.values(), messages["site-0"]]


def spell_otherwise(messages):
    upper = signed(key_of("site-1"), "site-1", messages["site-0"]["key"].upper())
    return list((messages | {"site-1": upper}).values())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (invent, "site-6 signs with .* but pins has none"),
        (leave_out, "does not have this site's own key"),
        (replace_own, "does not have this site's own key"),
        (repeat_name, "a name or a key twice"),
        (repeat_key, "a name or a key twice"),
        (repeat_message, "a name or a key twice"),
        (spell_otherwise, "key of site-1 must be 64 hex digits"),
        (lambda messages: [None] * 1001, "at most 1000"),
    ],
)
def test_a_list_that_is_not_right_is_refused(change, match):
    members = create_members()
    messages = ask_keys(members)
    with refused("message", match):
        members["site-0"].open(AGREED, 1, change(messages))
    with refused("message", "no unused key"):  # nor can the server try again
        members["site-0"].open(AGREED, 1, list(messages.values()))


def test_an_impossible_name_is_refused():
    """What is signed has parts between spaces: a name with a space could pass for two parts."""
    members = create_members(NAMES[:3])
    messages = [*ask_keys(members).values(), signed(STRANGER, "site 3", "1" * 64)]
    with refused("message", "an impossible name"):
        members["site-0"].open(AGREED, 1, messages)


def test_a_key_masks_one_vector():
    members = create_members()
    messages = list(ask_keys(members).values())
    session = members["site-0"].open(AGREED, 1, messages)
    with refused("message", "no unused key"):
        members["site-0"].open(AGREED, 1, messages)
    for wrong in (torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)):
        with pytest.raises(TypeError, match="expected int64"):
            session.mask(wrong)
    vector = torch.arange(3)
    session.mask(vector)
    assert vector.tolist() == [0, 1, 2]
    with refused("message", "each masks one"):
        session.mask(vector)


PRIME = 2**255 - 19
LOW_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
    PRIME,
    PRIME + 1,
)


@pytest.mark.parametrize("high_bit", [0, 2**255])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused(point, high_bit):
    members = create_members()
    messages = ask_keys(members)
    key = (point + high_bit).to_bytes(32, "little").hex()
    messages["site-1"] = signed(key_of("site-1"), "site-1", key)
    with refused("message", "the key of site-1 is a point of low order"):
        members["site-0"].open(AGREED, 1, list(messages.values()))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["0" * 64, "f" * 128]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=3,
)


@settings(max_examples=50)
@given(
    where=st.sampled_from(["list", "message", *KeyMessage.__dataclass_fields__]),
    row=st.integers(0, 2),
    value=values,
)
def test_damaged_messages_are_refused_and_raise_nothing_else(where, row, value):
    members = create_members(NAMES[:3])
    messages = list(ask_keys(members).values())
    changed = value if where == "list" else list(messages)
    if where == "message":
        changed[row] = value
    elif where != "list":
        changed[row] = messages[row] | {where: value}
    assume(changed != messages)
    with pytest.raises(RefusalError):
        members["site-0"].open(AGREED, 1, changed)


def test_the_server_adds_what_fits_alone():
    vectors = {name: ("t", torch.arange(3)) for name in NAMES[:3]}
    for changed, match in (
        ({"site-2": ("t", torch.arange(2))}, "int64 of one length"),
        ({"site-2": ("t", torch.arange(3.0))}, "int64 of one length"),
        ({"site-2": ("u", torch.arange(3))}, "different lists"),
        ({"site-3": ("t", torch.arange(3))}, "differ in site-3"),
    ):
        with refused("message", match):
            add_masked(vectors | changed, NAMES[:3])
    with refused("message", "differ in site-3, site-4"):
        add_masked(vectors, NAMES[:5])


@pytest.mark.parametrize(
    ("pins", "match"),
    [
        ({}, "pins has none for site-0"),
        ({"site-1": pin(STRANGER)}, "pins has none for site-0"),
        ({"site-0": pin(STRANGER)}, "pins has .* for site-0, whose key is"),
        ({"site-0": pin(key_of("site-0")).upper()}, "64 hex digits"),
        (dict.fromkeys(NAMES[:2], pin(key_of("site-0"))), "the same pin"),
    ],
)
def test_wrong_pins_are_told(pins, match):
    with pytest.raises(ConfigurationError, match=match):
        Member("site-0", key_of("site-0"), pins)


def test_colluders_are_at_least_one():
    """A site knows its own noise."""
    with pytest.raises(ValueError, match="colluders: got 0; expected to be at least 1"):
        create_members(colluders=0)


def test_the_signing_key_stays_at_the_site(tmp_path, monkeypatch, capsys):
    """``sites pin`` makes it once, for its owner alone; a damaged one is not replaced."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for _ in range(2):
        assert main(["sites", "pin", "--name", "site-1"]) == 0
        assert capsys.readouterr().out.startswith(f"  site-1: {pin(signing_key('site-1'))}\n")
    assert pin(signing_key("site-2")) != pin(signing_key("site-1"))
    path = state_folder() / "signing" / "site-1.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    assert main(["sites", "pin", "--name", "site-1"]) == 1
    assert "has 5 bytes; expected 32" in capsys.readouterr().err
    for args, says in (([], "give one of --name"), (["--name", "../a"], "expected to be letters")):
        assert main(["sites", "pin", *args]) > 0
        assert says in capsys.readouterr().err


def test_three_sites_are_told_of_secure_sums(tmp_path, capsys):
    for names in ("a,b,c", "a,b"):
        folder = f"--folder={tmp_path / names}"
        assert main(["sites", "init", "--sites", names, "--server=HOST", folder]) == 0
        told = capsys.readouterr().out
        assert ("secure: {pins: {a: PIN, b: PIN, c: PIN}}" in told) == (names == "a,b,c")
        assert ("fedaux-pl sites pin --certificates SITE" in told) == (names == "a,b,c")
