"""Names of others made safe for where they are shown: clients, classes, data, files and runs.

Whoever names a folder, a class or a client chooses what a run prints. A name must not color the
terminal or move its cursor, begin a line, reverse the text around it, become a link or an element
of a page, or choose the path of a file.
"""

import html
import os
import re
from pathlib import Path

_INTERPRETED = re.compile(r"[\\`*_\[\]|~#$]")  # by Markdown, within a line
_LINKED = {"://": "&#58;//", "www.": "www&#46;", "@": "&#64;"}  # by GitHub, without brackets
_LONGEST = 100  # bytes of a part of a file name: file systems allow 255 with the rest


class Markup(str):
    """Text that is Markdown already, in which all names are safe."""


def readable(text: str | Path) -> str:
    r"""Return a path, or a text with paths in it, so that it can be printed and written.

    Names of files need not be UTF-8: each byte that is not becomes ``\xNN``. All others stay.

    Examples:
        >>> readable("caf\u00e9"), readable(os.fsdecode(b"caf\xe9"))
        ('café', 'caf\\xe9')
    """
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # it has characters that no file name has
        return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def terminal_safe(name: object) -> str:
    r"""Return a name on one line; characters that nobody can see become escapes.

    These are line breaks, control characters (with those that begin escape sequences), characters
    that change the direction of the text, and bytes that are no text.

    Examples:
        >>> print(terminal_safe("north\x1b[2J\nward"), terminal_safe("Zürich"))
        north\x1b[2J\nward Zürich
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in readable(str(name)))


def terminal_safe_lines(text: object) -> str:
    """Return a text of several lines, such as an error, with each of its lines safe."""
    return "\n".join(map(terminal_safe, str(text).split("\n")))


def markdown_safe(name: object) -> str:
    r"""Return a name as Markdown that shows it as it is, on one line.

    Markdown, HTML and links in it are shown, not interpreted.

    Examples:
        >>> print(markdown_safe("[a](javascript:b) <img>"))
        \[a\](javascript:b) &lt;img&gt;
        >>> print(markdown_safe(Markup("`export`")))
        `export`
    """
    if isinstance(name, Markup):
        return name
    escaped = _INTERPRETED.sub(r"\\\g<0>", terminal_safe(name))
    escaped = html.escape(escaped, quote=False)
    for text, entity in _LINKED.items():
        escaped = escaped.replace(text, entity)
    return escaped


def file_safe(name: object) -> str:
    """Return a name as a part of the name of a file: no path, not hidden, and not too long.

    Examples:
        >>> file_safe("../ward 1"), file_safe("FedDF+P")
        ('__ward_1', 'FedDF+P')
    """
    safe = re.sub(r"[^\w.+-]", "_", str(name))
    safe = re.sub(r"^\.+", "_", safe)
    return safe.encode()[:_LONGEST].decode(errors="ignore")


def _escaped(character: str) -> str:
    r"""Return an escape such as ``\x1b``."""
    return character.encode("unicode_escape").decode()
