"""Who can read the keys of a federation, and the folder that `sites init` makes for them."""

import os
import stat

import pytest

from fedaux_pl.cli.entry import main
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sites.kit import check_closed, check_secrecy

INIT = ["sites", "init", "--sites=a,b", "--server=host"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path):
    """The folder of `sites init`, with the files that `nvflare provision` adds, by their modes."""
    before = os.umask(0o022)
    folder = tmp_path / "sites"
    assert main([*INIT, f"--folder={folder}"]) == 0
    state = folder / "kits" / "fedaux" / "state"
    state.mkdir(parents=True)
    (state / "cert.json").write_text("root_pri_key")
    for name, side in (("host", "server"), ("a", "client")):
        startup = folder / "kits" / "fedaux" / "prod_00" / name / "startup"
        startup.mkdir(parents=True)
        for file in ("rootCA.pem", f"{side}.crt", f"{side}.key"):
            (startup / file).touch()
        (startup / f"{side}.key").chmod(0o600)
    os.umask(before)
    return folder


def kit(folder, name="host"):
    return folder / "kits" / "fedaux" / "prod_00" / name


def test_the_folder_of_all_keys_is_closed_to_other_users(folder):
    assert mode(folder) == 0o700
    assert mode(folder / "kits" / "fedaux" / "state" / "cert.json") == 0o644  # as NVFlare writes it
    check_secrecy(kit(folder), "server")
    check_secrecy(kit(folder) / "startup", "server")


def test_an_open_folder_is_not_used_for_new_keys(tmp_path, capsys):
    folder = tmp_path / "my sites"
    folder.mkdir()
    folder.chmod(0o755)
    assert main([*INIT, f"--folder={folder}"]) == 1
    assert f"its mode is 0755: run chmod 700 '{folder}'" in capsys.readouterr().err
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    assert main([*INIT, f"--folder={folder}"]) == 0


def test_a_server_with_an_open_folder_says_which_chmod_to_run(folder, tmp_path):
    folder.chmod(0o755)  # as earlier versions made it
    for path in (kit(folder), kit(folder) / "startup"):
        with pytest.raises(ConfigurationError, match=f"mode is 0755: run chmod 700 {folder}$"):
            check_secrecy(path, "server")


def test_a_root_key_elsewhere_must_be_closed_as_well(folder, tmp_path):
    (folder / "project.yml").unlink()
    root_key = folder / "kits" / "fedaux" / "state" / "cert.json"
    with pytest.raises(ConfigurationError, match=f"mode is 0644: run chmod 600 {root_key}$"):
        check_secrecy(kit(folder), "server")
    root_key.chmod(0o600)
    check_secrecy(kit(folder), "server")


@pytest.mark.parametrize(("name", "side"), [("host", "server"), ("a", "client")])
def test_a_key_that_others_can_read_is_not_used(folder, name, side):
    key = kit(folder, name) / "startup" / f"{side}.key"
    for open_mode in (0o644, 0o640, 0o604):
        key.chmod(open_mode)
        with pytest.raises(ConfigurationError, match=f"{side}.key must be .* run chmod 600 {key}"):
            check_secrecy(kit(folder, name), side)
    key.chmod(0o400)
    check_secrecy(kit(folder, name), side)


def test_a_key_of_another_user_may_be_open_to_its_group(tmp_path, monkeypatch):
    """Such as that of a service, which is its member."""
    key = tmp_path / "client.key"
    key.touch()
    key.chmod(0o640)
    monkeypatch.setattr(os, "getuid", lambda: key.stat().st_uid + 1)
    check_closed(key)
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="run chmod 640"):
        check_closed(key)


def test_server_and_site_check_their_keys_before_they_listen_or_connect(
    folder, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("nvflare")
    from fedaux_pl.sites import Sites, certificates, transport

    monkeypatch.setattr(transport, "_create_cell", None)  # nothing is called
    monkeypatch.setattr(certificates, "certificate_name", lambda _: "a")
    folder.chmod(0o755)
    sites = Sites(["a", "b"], kit(folder), host="host")
    with pytest.raises(ConfigurationError, match="run chmod 700"):
        transport.ServerTransport(sites, None)
    args = ["site", "--config=quickstart", "--server=host:1", f"--certificates={kit(folder, 'a')}"]
    assert main(args) == 1
    assert "run chmod 700" in capsys.readouterr().err


def test_a_missing_file_of_a_kit_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no .*rootCA.pem: give certificates"):
        check_secrecy(tmp_path, "server")
