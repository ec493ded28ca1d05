"""What a benchmark found out, as a table for people."""

from collections.abc import Sequence
from typing import Any

_WIDTHS = (28, 20, 10, 9, 10)


def table(summary: dict[str, Any]) -> str:
    """The stages as a table, with a line on what they ran on before it and memory after it."""
    machine, product = summary["machine"], summary["matrix_product"]
    lines = [
        f"{machine['device']}, {machine['cores']} CPU cores, {machine['threads']} threads, "
        f"{machine['precision']}, torch {machine['torch']}",
        f"matrix product {product['size']} x {product['size']}, {product['dtype']}: "
        f"{product['tflops']:.3g} TFLOP/s",
        f"{summary['measured_rounds']} rounds after {summary['warmup_rounds']} to warm up; "
        "median (min to max)",
        "",
        _row("stage", ["seconds", "per second", "TFLOP/s", "of peak", "memory"]),
    ]
    for name, stage in summary["stages"].items():
        seconds = stage["seconds"]
        times = f"{seconds['median']:.4g} ({seconds['min']:.4g} to {seconds['max']:.4g})"
        rate, speed = stage["per_second"], stage["tflops"]
        cells = [
            times,
            "" if rate is None else f"{_digits(rate)} {stage['unit']}",
            "" if speed is None else f"{speed:.3g}",
            "" if speed is None else f"{stage['share_of_peak']:.1%}",
            _size(stage["device_peak_bytes"]),
        ]
        lines.append(_row(name, cells))
    memory = summary["memory"]
    lines += ["", f"host memory at most {_size(memory['host_peak_bytes'])}"]
    if memory["device_peak_bytes"] is not None:
        lines[-1] += (
            f", device memory at most {_size(memory['device_peak_bytes'])}"
            f" ({_size(memory['device_reserved_bytes'])} reserved)"
        )
    if plain := summary.get("plain"):
        same = "the same weights" if plain["same_weights"] else "other weights (rounding)"
        lines.append(
            f"a plain loop: {plain['seconds']['median']:.4g} s a round ({same}); a round here takes"
            f" {plain['ratio_of_minima']:.3f} of it (minima; median {plain['ratio']['median']:.3f})"
        )
    return "\n".join(lines)


def _size(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _digits(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _row(name: str, cells: Sequence[str]) -> str:
    padded = [f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]
    return f"{name:24}{''.join(padded)}".rstrip()
