"""Show the comments behind the fields of dataclasses in the API pages; an extension of griffe."""

import io
import tokenize
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Take the comment in the line of a class's annotated attribute as its docstring."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Document an attribute that griffe has read."""
        is_field = attr.annotation is not None and attr.parent is not None and attr.parent.is_class
        if not is_field or attr.docstring is not None:
            return
        comment = trailing_comment(attr.source)
        if comment:
            attr.docstring = griffe.Docstring(comment, parent=attr)


def trailing_comment(source: str) -> str:
    """Return the comment of a statement without its sign, or nothing for one to a checker.

    Examples:
        >>> trailing_comment("lr: float = 0.1  # of Adam")
        'of Adam.'
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not text.startswith(("noqa", "type:")):
            return f"{text}."
    return ""
