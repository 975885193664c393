"""PURE: HTML and SVG as values, escaped where they are made.

``Html`` is text that is markup already; any other text becomes harmless on its way into an element. So what
comes out is safe whatever a job's name, a log line or a cause holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"meta", "link", "br", "rect", "path", "line", "col", "wbr"})

Content = object  # Html, str, a number, None (nothing), or an iterable of these
Attribute = str | int | float | bool | None


class Html(str):
    """Markup. Make it by ``tag`` and ``join``; wrap only text that this package wrote itself."""

    __slots__ = ()


def text(value: Content) -> Html:
    """Anything as markup: Html as it is, iterables one after the other, None as nothing, the rest escaped."""
    if isinstance(value, Html):
        return value
    if value is None:
        return Html("")
    if isinstance(value, (str, int, float)):
        return Html(escape(_printable(str(value)), quote=True))
    if isinstance(value, Iterable):
        return join(value)
    raise TypeError(f"{type(value).__name__} can't be shown")


def join(parts: Iterable[Content], between: str = "") -> Html:
    """One after the other."""
    return Html(escape(between).join(text(part) for part in parts))


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Html:
    """``tag("td", 3, class_="num")``. In attributes ``_`` becomes ``-``; None and False leave one out."""
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID and not content:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(content)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    return f" {key}" if value is True else f' {key}="{escape(_printable(str(value)), quote=True)}"'


def _printable(value: str) -> str:
    """Without control characters (a log line's colours), which no page may hold."""
    return "".join(
        char if char in "\n\t" or (char.isprintable() or char == " ") else "\N{REPLACEMENT CHARACTER}"
        for char in value
    )
