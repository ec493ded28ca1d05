"""``fedaux-pl report FILE``: tables, figures and a page of a sweep."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaux_pl.cli.sweep import SweepParser, command_line
from fedaux_pl.reports.formats import TableItem, to_text
from fedaux_pl.sweeps.cells import resolve
from fedaux_pl.sweeps.sweep_file import check_metrics, read_sweep

if TYPE_CHECKING:
    from fedaux_pl.reports.page import Item

_PRINTED = 10  # lines of cells that are not done


def report(args: Sequence[str]) -> list[Path]:
    """Write tables, figures and a page of what a sweep has measured so far; return the files."""
    parser = SweepParser(
        "report",
        "Writes tables, figures and a page of what a sweep has measured so far. It finds the cells "
        "by their settings: give the options of fit that sweep was given.",
    )
    about = "the folder of the report (default: ROOT/reports/NAME)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=about)
    options = parser.parse(args)
    sweep = read_sweep(options.file, options.extra, options.seeds, options.select)
    cells = resolve(sweep.cells, options.root)
    check_metrics(sweep, cells)
    # matplotlib and Lightning, which take seconds to import, are not needed to refuse an option
    from fedaux_pl.reports.figures import make_figures
    from fedaux_pl.reports.page import describe_cells
    from fedaux_pl.reports.tables import cells_table, make_tables
    from fedaux_pl.reports.values import collect

    groups = collect(sweep, cells)
    changes = "All cells ran with these options, whatever else is said here: "
    changes = changes + shlex.join(options.extra) if options.extra else ""
    return publish(
        options.output or options.root / "reports" / sweep.name,
        sweep.title,
        [*make_figures(sweep, groups), *make_tables(sweep, groups)],
        note=f"{sweep.note}\n\n{changes}",
        details=[cells_table(sweep, groups)],
        status=describe_cells(groups, command_line("sweep", options)),
    )


def publish(folder: Path, title: str, items: Sequence["Item"], **parts: Any) -> list[Path]:
    """Print the tables of a report and what of its sweep is done, and write its files."""
    from fedaux_pl.reports.page import Report, write_report

    report = Report(title, items, **parts)
    width = shutil.get_terminal_size((120, 24)).columns
    for item in items:
        if isinstance(item, TableItem):
            print(f"{item.caption}\n\n{to_text(item, width)}\n")
    status = report.status
    if status.done:
        lines = [f"  {line}" for line in status.missing]
        if len(lines) > _PRINTED:
            lines[_PRINTED:] = [f"  and {len(lines) - _PRINTED} more lines, which index.html lists"]
        print("\n".join([status.done, *lines]))
        if status.command:
            print(f"To run them: {status.command}")
    written = write_report(folder, report)
    print(f"Written to {folder}: {', '.join(sorted(file.name for file in written))}")
    return written
