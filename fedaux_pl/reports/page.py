"""Writes a report: files of each table and figure, report.md, and a page that holds everything."""

import base64
import html
import io
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaux_pl.errors import counted
from fedaux_pl.files import write_atomically
from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import (
    TableItem,
    escape_markdown,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)
from fedaux_pl.reports.values import Group, place_text, short_names
from fedaux_pl.sweeps.cells import CellState

Item = TableItem | FigureItem

_RESOLUTION = 160  # pixels per inch: sharp on screens with many pixels
_MANY_LINES = 6  # more of them are folded
_MISSING = "Cells that are not done"

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --muted: #5f6b7a; --line: #c3cad3;
  --page: #fff; --band: #f3f5f7; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --muted: #9aa5b4; --line: #4a5462;
  --page: #14181d; --band: #1e242b; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 84rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; }
p { max-width: 52rem; margin: .5rem 0; }
code { font-size: .85em; overflow-wrap: anywhere; }
.status { border-left: 4px solid var(--accent); background: var(--band); padding: .5rem 1rem;
  margin: 1rem 0; }
.status details { margin: .25rem 0; }
.status ul { margin: .25rem 0; padding-left: 1.2rem; }
section { margin: 2.5rem 0; }
.caption { color: var(--muted); font-size: .95rem; }
.scroll { overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem;
  border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink); margin: .5rem 0; }
th, td { padding: .25rem .45rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
thead th[colspan] { text-align: center; border-bottom: 1px solid var(--line); }
thead tr:last-child th { border-bottom: 1px solid var(--ink); }
tbody tr:nth-child(even) > * { background: var(--band); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
tbody th { font-weight: normal; }
.text { text-align: left; }
td.text { white-space: normal; min-width: 9rem; }
tbody td, tbody th { vertical-align: top; }
.paper { color: var(--muted); font-weight: normal; }
details { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
details table { font-size: .8rem; }
details td, details thead th { text-align: left; }
details td.text { min-width: 0; white-space: nowrap; }
details td.text:last-child { min-width: 30rem; white-space: normal; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .scroll img { max-width: max(100%, 40rem); } }
@media print { body { max-width: none; font-size: 10pt; padding: 0; }
  section { break-inside: avoid; } .scroll { overflow: visible; } th, td { padding: .1rem .3rem; }
  table { font-size: 7.5pt; } }
"""


@dataclass(frozen=True)
class Status:
    """What of a sweep is done.

    Attributes:
        done: How many cells are done, such as ``12 of 54 cells done, 42 missing``.
        missing: Those that are not, such as ``FedAVG, alpha = 0.01: seeds 1, 2 missing``.
        command: The command that runs them; empty if there are none.
    """

    done: str
    missing: Sequence[str] = ()
    command: str = ""


def describe_status(groups: Sequence[Group], args: Sequence[str]) -> Status:
    """Return how many cells are done, and which are not.

    Args:
        groups: All cells.
        args: The arguments of ``fedaux-pl sweep`` that run them.
    """
    counts = Counter(result.state for group in groups for result in group.results)
    others = [f"{counts[s]} {s}" for s in CellState if s != CellState.DONE and counts[s]]
    done = f"{counts[CellState.DONE]} of {counted(counts.total(), 'cell')} done"
    names = short_names(axis for group in groups for axis in group.coordinates)
    missing = []
    for group in groups:
        seeds: dict[str, list[str]] = {}
        for result in group.results:
            text = str(result.state)
            if result.state not in (CellState.MISSING, CellState.DONE):
                error = f": {result.error}" if result.error else ""
                text += f" ({result.rounds}/{result.cell.rounds} rounds){error}"
            seeds.setdefault(text, []).append(str(result.cell.seed))
        seeds.pop(CellState.DONE, None)
        parts = [f"seed{'s' * (len(s) > 1)} {', '.join(s)} {text}" for text, s in seeds.items()]
        if parts:
            missing.append(f"{place_text(group.coordinates, names)}: {'; '.join(parts)}")
    retry = ["--retry"] if counts[CellState.FAILED] else []
    command = shlex.join(["fedaux-pl", "sweep", *args, *retry]) if missing else ""
    return Status(", ".join([done, *others]), missing, command)


def write_report(
    folder: Path,
    title: str,
    note: str,
    items: Sequence[Item],
    details: Sequence[Item] = (),
    status: Status | None = None,
) -> list[Path]:
    """Write the files of a report.

    NAME.md, NAME.csv and NAME.tex for each table, NAME.png and NAME.pdf for each figure, all of it
    in report.md, and index.html, which needs no other file.

    Args:
        folder: The folder of all files; it is created if needed.
        title: The title.
        note: What a reader should know; paragraphs are separated by an empty line.
        items: Tables and figures, in their order.
        details: Those that are folded at the end; of a table only the CSV is written.
        status: What of a sweep is done.

    Returns:
        The files.
    """
    files: dict[str, bytes] = {}
    for item in (*items, *details):
        if isinstance(item, FigureItem):
            files |= {f"{item.name}.{kind}": _render(item, kind) for kind in ("png", "pdf")}
        else:
            files[f"{item.name}.csv"] = to_csv(item).encode()
    for item in items:
        if isinstance(item, TableItem):
            files[f"{item.name}.md"] = to_markdown(item).encode()
            files[f"{item.name}.tex"] = to_latex(item).encode()
    files["report.md"] = _markdown_page(title, note, items, details, status).encode()
    files["index.html"] = _html_page(title, note, items, details, status, files).encode()
    for name, content in files.items():
        write_atomically(folder / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return [folder / name for name in files]


def _render(item: FigureItem, kind: str) -> bytes:
    from matplotlib import rc_context

    file = io.BytesIO()
    # fonts that editors can read; without a date, the same results give the same file
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    with rc_context({"pdf.fonttype": 42}):
        item.figure.savefig(
            file, format=kind, dpi=_RESOLUTION, facecolor="white", metadata=metadata,
            bbox_inches="tight", pad_inches=0.08,
        )  # fmt: skip
    return file.getvalue()


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _markdown_page(
    title: str, note: str, items: Sequence[Item], details: Sequence[Item], status: Status | None
) -> str:
    parts = [f"# {escape_markdown(title)}", *map(escape_markdown, _paragraphs(note))]
    if status is not None:
        parts.append(f"**{escape_markdown(status.done)}**")
        if lines := [f"- {escape_markdown(line)}" for line in status.missing]:
            text = "\n".join(lines)
            parts.append(_folded(_MISSING, text) if len(lines) > _MANY_LINES else text)
            parts.append(f"To run them:\n\n```bash\n{status.command}\n```")
    parts += map(_markdown_item, items)
    parts += [_folded(item.caption, _markdown_item(item, "")) for item in details]
    return "\n\n".join(parts) + "\n"


def _markdown_item(item: Item, caption: str | None = None) -> str:
    caption = escape_markdown(item.caption if caption is None else caption)
    if isinstance(item, FigureItem):
        return f"![{item.name}]({item.name}.png)\n\n{caption}".rstrip()
    return f"{caption}\n\n{to_markdown(item)}".strip()


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{text}\n\n</details>"


def _html_page(
    title: str,
    note: str,
    items: Sequence[Item],
    details: Sequence[Item],
    status: Status | None,
    files: dict[str, bytes],
) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in _paragraphs(note)]
    if status is not None:
        parts.append(f'<div class="status">{_html_status(status)}</div>')
    parts += [f"<section>{_html_item(item, files)}</section>" for item in items]
    for item in details:
        summary = f"<summary>{html.escape(item.caption)}</summary>"
        parts.append(f"<details>{summary}{_html_item(item, files, False)}</details>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _html_status(status: Status) -> str:
    done = f"<b>{html.escape(status.done)}</b>"
    if not status.missing:
        return done
    listed = f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in status.missing)}</ul>"
    if len(status.missing) > _MANY_LINES:
        listed = f"<details><summary>{_MISSING}</summary>{listed}</details>"
    return f"{done}{listed}<p>To run them: <code>{html.escape(status.command)}</code></p>"


def _html_item(item: Item, files: dict[str, bytes], with_caption: bool = True) -> str:
    caption = f'<p class="caption">{html.escape(item.caption)}</p>' if with_caption else ""
    if isinstance(item, TableItem):
        return f'{caption}\n<div class="scroll">{to_html(item)}</div>'
    picture = files[f"{item.name}.png"]
    data = base64.b64encode(picture).decode()
    width = int.from_bytes(picture[16:20]) * 96 // _RESOLUTION  # of PNG's first chunk
    alt = html.escape(item.caption)
    image = f'<img width={width} src="data:image/png;base64,{data}" alt="{alt}">'
    return f'<div class="scroll">{image}</div>\n{caption}'
