"""How text of an author's file may stand in generated source: in a comment, and only as this makes it."""

from __future__ import annotations


def safe_comment(text: str, limit: int = 80) -> str:
    """One line of printable ASCII, with everything else escaped, no longer than `limit`."""
    shown = ascii(text)[1:-1]
    return shown if len(shown) <= limit else f"...{shown[-limit:]}"
