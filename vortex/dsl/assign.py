"""`key=value` texts, as the command line and the environment give hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable


class AssignmentError(ValueError):
    """A text that assigns nothing; the message continues a sentence that begins with where it came from."""


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a dictionary of texts. Raises AssignmentError."""
    found: dict[str, str] = {}
    for each in texts:
        key, equals, value = each.partition("=")
        name = key.strip()
        if not equals or not name.isidentifier():
            raise AssignmentError(f"takes key=value, e.g. budget=64; got {each!r}")
        if name in found:
            raise AssignmentError(f"gives {name} twice")
        found[name] = value.strip()
    return found
