"""The results of a benchmark as a table."""

from collections.abc import Sequence
from typing import Any

_WIDTHS = (28, 20, 10, 9, 10)


def format_table(summary: dict[str, Any]) -> str:
    """Formats a summary: the machine, a table of the stages, memory and the plain loop."""
    machine, product = summary["machine"], summary["matrix_product"]
    lines = [
        f"{machine['device']}, {machine['cores']} CPU cores, {machine['threads']} threads, "
        f"{machine['precision']}, torch {machine['torch']}",
        f"matrix product {product['size']} x {product['size']}, {product['dtype']}: "
        f"{product['tflops']:.3g} TFLOP/s",
        f"{summary['measured_rounds']} rounds after {summary['warmup_rounds']} of warm-up; "
        "median (min to max)",
        "",
        _row("stage", ["seconds", "per second", "TFLOP/s", "of peak", "memory"]),
    ]
    for name, stage in summary["stages"].items():
        seconds, rate, speed = stage["seconds"], stage["per_second"], stage["tflops"]
        cells = [
            f"{seconds['median']:.4g} ({seconds['min']:.4g} to {seconds['max']:.4g})",
            "" if rate is None else f"{_rate(rate)} {stage['unit']}",
            "" if speed is None else f"{speed:.3g}",
            "" if speed is None else f"{stage['share_of_peak']:.1%}",
            _bytes(stage["device_peak_bytes"]),
        ]
        lines.append(_row(name, cells))
    memory = summary["memory"]
    lines += ["", f"host memory at most {_bytes(memory['host_peak_bytes'])}"]
    if memory["device_peak_bytes"] is not None:
        lines[-1] += (
            f", device memory at most {_bytes(memory['device_peak_bytes'])}"
            f" ({_bytes(memory['device_reserved_bytes'])} reserved)"
        )
    if start := summary.get("start"):
        lines.append(
            f"before the first round, without pre-training: {start['preparation_seconds']:.3g} s"
        )
        extra = [f"{name} {s:.3g} s" for name, s in start["extra_seconds"].items()]
        lines.append(f"the first epoch or round takes longer by: {', '.join(extra)}")
        for kind, part in (start["preparations"] | start["kernels"]).items():
            name = f"kernels {kind}" if kind in start["kernels"] else kind
            lines.append(f"  {name}: {part['count']}, {part['seconds']:.3g} s in all")
    if plain := summary.get("plain"):
        same = "the same weights" if plain["same_weights"] else "other weights (rounding)"
        lines.append(
            f"plain loop: {plain['seconds']['median']:.4g} s per round ({same}); the federation "
            f"takes {plain['ratio_of_minima']:.3f} times as long (ratio of the minima; median "
            f"ratio {plain['ratio']['median']:.3f})"
        )
    return "\n".join(lines)


def _bytes(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _row(name: str, cells: Sequence[str]) -> str:
    padded = [f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]
    return f"{name:24}{''.join(padded)}".rstrip()
