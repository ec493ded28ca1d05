"""Writes a report: files of each table and figure, report.md, and a page that holds everything."""

import base64
import html
import io
import itertools
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from fedaux_pl.errors import counted
from fedaux_pl.files import write_atomically
from fedaux_pl.reports import formats
from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import TableItem, escape_markdown
from fedaux_pl.reports.values import Group, place_text
from fedaux_pl.runs.finished_runs import short_names
from fedaux_pl.sweeps.cells import CellState

Item = TableItem | FigureItem

_RESOLUTION = 160  # pixels per inch: sharp on screens with many pixels
_MANY_LINES = 6  # more of them are folded
_MISSING = "Cells that are not done"


@dataclass(frozen=True)
class Status:
    """What of a sweep is done."""

    done: str  # such as "12 of 54 cells done, 42 missing"
    missing: Sequence[str] = ()  # such as "FedAVG, alpha = 0.01: seeds 1, 2 missing"
    command: str = ""  # which runs them


def describe_cells(groups: Sequence[Group], command: Sequence[str]) -> Status:
    """Return which cells are done; the ``command`` runs those that are not."""
    results = itertools.chain(*(group.results for group in groups))
    counts = Counter(result.state for result in results)
    total = counted(counts.total(), "cell")
    parts = [f"{counts.pop(CellState.DONE, 0)} of {total} done"]
    parts += [f"{counts[state]} {state}" for state in CellState if counts[state]]
    names = short_names(itertools.chain(*(group.coordinates for group in groups)))
    missing = []
    for group in groups:
        texts = _describe_seeds(group)
        if texts:
            missing.append(f"{place_text(group.coordinates, names)}: {'; '.join(texts)}")
    retry = ["--retry"] if counts[CellState.FAILED] else []
    to_run = shlex.join([*command, *retry]) if missing else ""
    return Status(", ".join(parts), missing, to_run)


def _describe_seeds(group: Group) -> list[str]:
    """Return how far the seeds are that are not done, such as "seeds 1, 2 missing"."""
    seeds: dict[str, list[str]] = {}
    for result in group.results:
        if result.state == CellState.DONE:
            continue
        text = str(result.state)
        if result.state != CellState.MISSING:
            text += f" ({result.rounds}/{result.cell.rounds} rounds)"
        if result.state == CellState.FAILED:
            text += f": {result.cell.read_failure().get('error')}"
        seeds.setdefault(text, []).append(str(result.cell.seed))
    texts = []
    for text, numbers in seeds.items():
        word = "seeds" if len(numbers) > 1 else "seed"
        texts.append(f"{word} {', '.join(numbers)} {text}")
    return texts


@dataclass(frozen=True)
class Report:
    """What a report shows; a sweep has a status."""

    title: str
    items: Sequence[Item]
    note: str = ""  # an empty line separates paragraphs
    details: Sequence[Item] = ()  # folded at the end; of a table, only the CSV is a file
    status: Status = Status("")

    @property
    def paragraphs(self) -> list[str]:
        """The note by paragraphs, each in one line."""
        return [" ".join(text.split()) for text in self.note.split("\n\n") if text.strip()]


def write_report(folder: Path, report: Report) -> list[Path]:
    """Write the files of a report, and return their paths.

    NAME.md, NAME.csv and NAME.tex for each table, NAME.png and NAME.pdf for each figure, all of it
    in report.md, and index.html, which needs no other file.
    """
    files: dict[str, bytes] = {}
    for item in (*report.items, *report.details):
        if isinstance(item, FigureItem):
            files[f"{item.name}.png"] = _render(item, "png")
            files[f"{item.name}.pdf"] = _render(item, "pdf")
        else:
            files[f"{item.name}.csv"] = formats.to_csv(item).encode()
    for item in report.items:
        if isinstance(item, TableItem):
            files[f"{item.name}.md"] = formats.to_markdown(item).encode()
            files[f"{item.name}.tex"] = formats.to_latex(item).encode()
    files["report.md"] = _markdown_page(report).encode()
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page = template.substitute(title=html.escape(report.title), body=_html_body(report, files))
    files["index.html"] = page.encode()
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
            file,
            format=kind,
            dpi=_RESOLUTION,
            facecolor="white",
            metadata=metadata,
            bbox_inches="tight",
            pad_inches=0.08,
        )
    return file.getvalue()


def _markdown_page(report: Report) -> str:
    status = report.status
    parts = [f"# {escape_markdown(report.title)}", *map(escape_markdown, report.paragraphs)]
    if status.done:
        parts.append(f"**{escape_markdown(status.done)}**")
    if status.missing:
        text = "\n".join(f"- {escape_markdown(line)}" for line in status.missing)
        is_long = len(status.missing) > _MANY_LINES
        parts.append(_folded(_MISSING, f"\n\n{text}\n\n") if is_long else text)
        parts.append(f"To run them:\n\n```bash\n{status.command}\n```")
    for item in report.items:
        parts += _with_caption(item, _markdown(item), escape_markdown(item.caption))
    parts += [_folded(item.caption, f"\n\n{_markdown(item)}\n\n") for item in report.details]
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown(item: Item) -> str:
    if isinstance(item, TableItem):
        return formats.to_markdown(item).strip()
    return f"![{item.name}]({item.name}.png)"


def _with_caption(item: Item, content: str, caption: str) -> list[str]:
    return [content, caption] if isinstance(item, FigureItem) else [caption, content]


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{text}</details>"


def _html_body(report: Report, files: Mapping[str, bytes]) -> str:
    status = report.status
    parts = [f"<h1>{html.escape(report.title)}</h1>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in report.paragraphs]
    text = f"<b>{html.escape(status.done)}</b>"
    if status.missing:
        lines = [f"<li>{html.escape(line)}</li>" for line in status.missing]
        missing = f"<ul>{''.join(lines)}</ul>"
        text += _folded(_MISSING, missing) if len(lines) > _MANY_LINES else missing
        text += f"<p>To run them: <code>{html.escape(status.command)}</code></p>"
    if status.done:
        parts.append(f'<div class="status">{text}</div>')
    for item in report.items:
        caption = f'<p class="caption">{html.escape(item.caption)}</p>'
        text = "\n".join(_with_caption(item, _html(item, files), caption))
        parts.append(f"<section>{text}</section>")
    parts += [_folded(item.caption, f"\n{_html(item, files)}") for item in report.details]
    return "\n".join(parts)


def _html(item: Item, files: Mapping[str, bytes]) -> str:
    if isinstance(item, TableItem):
        return f'<div class="scroll">{formats.to_html(item)}</div>'
    picture = files[f"{item.name}.png"]
    data = base64.b64encode(picture).decode()
    width = int.from_bytes(picture[16:20]) * 96 // _RESOLUTION  # of PNG's first chunk
    alt = html.escape(item.caption)
    image = f'<img width={width} src="data:image/png;base64,{data}" alt="{alt}">'
    return f'<div class="scroll">{image}</div>'
