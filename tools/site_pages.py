"""Pages of the documentation site that are made when mkdocs builds it; the hooks of ``mkdocs.yml``.

README, CONTRIBUTING, CHANGELOG and SECURITY as they stand, the files of ``examples/``, the help of
every verb of the command line, and the API reference: the names that the folders of the package
export, with their docstrings.
"""

import contextlib
import inspect
import io
import os
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedaux_pl
from fedaux_pl.cli.entry import VERBS, main

ROOT = Path(__file__).parents[1]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
ROOMS = ("algorithms", "callbacks", "data", "federation", "functional", "models", "modules")
ROOMS += ("scoring", "sites")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs/``, and files that pages link to."""
    pages = {new: (ROOT / old).read_text(encoding="utf-8") for old, new in TOP.items()}
    pages |= {"examples.md": examples_page(), "cli.md": cli_page()}
    pages |= {f"reference/{room}.md": room_page(room) for room in ROOMS}
    pages["reference/index.md"] = index_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in ("CITATION.cff", "LICENSE"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links that hold in the repository into those of the site."""
    if "/" in page.file.src_uri:
        return markdown
    folder = ROOT if page.file.src_uri in TOP.values() else ROOT / "docs"
    return re.sub(r"\]\(([^)#:\s]+)", lambda match: f"]({site_link(match[1], folder)}", markdown)


def site_link(link: str, folder: Path) -> str:
    """Return where the site has what a page in this folder of the repository links to."""
    path = Path(os.path.normpath(folder / link)).relative_to(ROOT).as_posix()
    if path.startswith("examples"):
        return "examples.md" + (f"#{_anchor(path)}" if Path(path).suffix else "")
    return TOP.get(path, path.removeprefix("docs/"))


def _anchor(path: str) -> str:
    return re.sub(r"[^\w-]", "-", path.removeprefix("examples/"))


def examples_page() -> str:
    """Return the files of ``examples/``, each below its name."""
    parts = ["# Examples", "The files of `examples/` in the repository; tests run all of them."]
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.suffix in (".py", ".yaml"):
            name = path.relative_to(ROOT).as_posix()
            text = path.read_text(encoding="utf-8").strip()
            language = path.suffix[1:]
            parts += [f"## {name} {{ #{_anchor(name)} }}", f"````{language}\n{text}\n````"]
    return "\n\n".join(parts)


def cli_page() -> str:
    """Return the help of the program and of every verb."""
    parts = ["# The command line", _block(_help([]))]
    fit = _help(["fit"])
    for verb, about in VERBS.items():
        parts += [f"## {verb}", f"{about[0].upper()}{about[1:]}."]
        if verb == "fit":
            for part in ("model", "data"):
                command = f"fedaux-pl fit --{part}.help"
                parts += [f"### {command}", _block(_help(["fit", f"--{part}.help"]))]
            parts.append(f'??? note "fedaux-pl fit --help: all options"\n\n{_block(fit, 4)}')
        elif verb == "sites":
            parts += [_block(_help(["sites", one])) for one in ("init", "status", "pin")]
        else:
            parts.append(_block(_own_help(_help([verb]), fit)))
    return "\n\n".join(parts)


def _help(args: Sequence[str]) -> str:
    """Return what the program prints; the first call imports the package."""
    os.environ["COLUMNS"] = "80"  # what a page shows without scrolling
    asked = args if args and args[-1].endswith("help") else [*args, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        if main(asked):
            raise RuntimeError(f"fedaux-pl {' '.join(asked)} failed")
    return printed.getvalue().strip()


def _own_help(text: str, fit: str) -> str:
    """Return a verb's help without the options of fit, if it has these as well."""
    usage, *rest = text.split("\n\n")
    if "--trainer.max_epochs" not in usage:
        return text
    known = set(fit.split("\n")) - {""}
    own = [line for line in "\n\n".join(rest).split("\n") if line not in known]
    return re.sub(
        r"\n{3,}", "\n\n", "\n".join([usage.split(" [")[0] + " [options of fit]", "", *own])
    )


def _block(text: str, indent: int = 0) -> str:
    lines = ["```text", *text.splitlines(), "```"]
    return "\n".join(" " * indent + line if line else "" for line in lines)


def public_names(room: str) -> list[str]:
    """Return the names that a folder of the package exports, those of ``fedaux_pl`` first."""
    module = import_module(f"fedaux_pl.{room}")
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
    return sorted(names, key=lambda name: (name not in fedaux_pl.__all__, name))


def room_page(room: str) -> str:
    """Return the reference of one folder of the package; mkdocstrings fills it."""
    about = inspect.getdoc(import_module(f"fedaux_pl.{room}"))
    entries = [f"::: fedaux_pl.{room}.{name}" for name in public_names(room)]
    return "\n\n".join([f"# fedaux_pl.{room}", f"{about}", *entries])


def docstring(room: str, name: str) -> str:
    """Return the docstring of a public name; that of a type alias is only in the source."""
    value = getattr(import_module(f"fedaux_pl.{room}"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    package = griffe.load("fedaux_pl", resolve_aliases=True)
    return package[f"{room}.{name}"].docstring.value


def index_page() -> str:
    """Return the table of all public names, each with the first line of its docstring."""
    parts = ["# API reference", "Names in bold are also in `fedaux_pl` itself."]
    for room in ROOMS:
        parts += [f"## [fedaux_pl.{room}]({room}.md)", "| name | what it is |\n| --- | --- |"]
        for name in public_names(room):
            about = docstring(room, name).partition("\n")[0].replace("|", "\\|")
            mark = "**" if name in fedaux_pl.__all__ else ""
            parts[-1] += f"\n| {mark}[`{name}`][fedaux_pl.{room}.{name}]{mark} | {about} |"
    return "\n\n".join(parts)
