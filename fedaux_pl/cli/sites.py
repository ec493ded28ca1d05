"""The verbs that set up real sites: ``sites init`` and ``status`` (server), and ``sites pin``.

They import neither torch nor Lightning.
"""

from collections.abc import Sequence
from pathlib import Path

from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.runs.option_parser import OptionParser
from fedaux_pl.sites.provisioning import PINNED, write_project
from fedaux_pl.sites.site_status import describe_status


def sites(args: Sequence[str]) -> None:
    """Writes what a federation over sites needs, lists the sites of a run, or prints a pin."""
    verbs = {"init": _init, "status": _status, "pin": _pin}
    verb, *rest = args or ["nothing"]
    if verb in ("-h", "--help"):
        print("usage: fedaux-pl sites init|status|pin [options]; `sites init --help` lists them")
        return
    if verb not in verbs:
        raise ConfigurationError(
            f"sites: got {verb}{did_you_mean(verb, verbs)}; expected init, status or pin"
        )
    verbs[verb](rest)


def _init(args: list[str]) -> None:
    about = "Writes NVFlare's project file, sites.yaml for fit, and what to send to whom."
    parser = OptionParser(prog="fedaux-pl sites init", description=about)
    parser.add_function_arguments(write_project, as_group=False)
    options = parser.parse_args(args)
    try:
        print(write_project(**options.as_dict()))
    except ValueError as error:
        parser.error(str(error))


def _status(args: list[str]) -> None:
    about = "Says who is connected, since when, and the last round that each has answered."
    parser = OptionParser(prog="fedaux-pl sites status", description=about)
    parser.add_argument(
        "--root",
        "--trainer.default_root_dir",
        type=Path,
        default=Path("logs"),
        help="The default_root_dir of the run.",
    )
    print(describe_status(parser.parse_args(args).root))


def _pin(args: list[str]) -> None:
    about = "Prints the pin of a site's signing key, by which other sites know it in secure sums."
    parser = OptionParser(prog="fedaux-pl sites pin", description=about)
    add = parser.add_argument
    add("--name", type=str | None, help="The name of this site; or give its certificates.")
    add("--certificates", type=Path | None, help="The folder that has its certificate.")
    options = parser.parse_args(args)
    if (options.name is None) == (options.certificates is None):
        parser.error("give one of --name and --certificates")
    from fedaux_pl.sites.secure_sum import pin, signing_key  # raises without the extra `sites`

    name = options.name
    if name is None:
        from fedaux_pl.sites.certificates import certificate_name

        name = certificate_name(options.certificates)
    print(PINNED.format(name=name, pin=pin(signing_key(name))))
