"""How text of an author's file may stand in generated source: in a comment, and only as this makes it."""

from __future__ import annotations

import re

ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)|.")
"""One character as `ascii` writes it: an escape sequence is never cut in two."""


def safe_comment(text: str, limit: int = 80) -> str:
    """One line of printable ASCII, everything else escaped, no longer than `limit`; the end of longer text.

    No `*/` is left either, should the source ever be another language's.
    """
    shown = ascii(text)[1:-1].replace("*/", "* /")
    if len(shown) <= limit:
        return shown
    kept: list[str] = []
    room = limit - 3
    for piece in reversed(ESCAPE.findall(shown)):
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "..." + "".join(reversed(kept))
