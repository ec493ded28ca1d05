"""The lines that the server prints about sites."""

from fedaux_pl.names import terminal_safe


def log_line(text: str) -> None:
    """Print a line about sites above the progress bars of the server."""
    # imported here, because the file imports Lightning, which `fedaux-pl sites` does not need
    from fedaux_pl.callbacks.progress import print_above_bars

    print_above_bars(f"sites: {terminal_safe(text)}", flush=True)
