"""A figure of the auxiliary texts with the highest scores of each client."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedaux_pl.callbacks.figures import style
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CHARACTERS = 90


class ScoredText(NamedTuple):
    """A text with the score that a client gives to it."""

    client: str
    score: float
    text: str


def top_texts_figure(rows: Sequence[ScoredText], total: int) -> "Figure":
    """Draws texts, cut to `MAX_CHARACTERS`, below the clients with their highest scores.

    Args:
        rows: The texts, those of a client one after another, best first.
        total: The number of texts that were scored, for the note.
    """
    lines: list[tuple[float, str, str]] = []  # y in lines, score, text
    heads: list[tuple[float, str]] = []
    y = 0.0
    for row in rows:
        if not heads or heads[-1][1] != row.client:
            y += 0.4 if heads else 0.0
            heads.append((y, row.client))
            y += 1
        lines.append((y, style.score_text(row.score), style.shorten(row.text, MAX_CHARACTERS)))
        y += 1
    height, size = style.line_height(style.LABEL_SIZE), style.TICK_SIZE
    gap = style.text_width([score for _, score, _ in lines], size) + 0.15
    wide = gap + style.text_width([text for *_, text in lines], size)
    figure, axes = style.canvas(
        plot=(wide, y * height),
        left=0.05,
        right=0.15,
        bottom=0.15,
        title="Texts with the highest scores",
        note=f"Of {counted(total, 'auxiliary text')}, by certainty score",
    )
    place: dict[str, Any] = {"va": "top", "parse_math": False}
    for line, client in heads:
        axes.text(
            0, line, client, color=style.INK, fontsize=style.LABEL_SIZE, fontweight="bold", **place
        )
    for line, score, text in lines:
        axes.text(0, line, score, color=style.MUTED, fontsize=size, **place)
        axes.text(gap, line, text, color=style.INK, fontsize=size, **place)
    axes.set(xlim=(0, wide), ylim=(y, 0))
    axes.set_axis_off()
    return figure
