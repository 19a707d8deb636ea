"""A mistake found while a rule is applied, before it has a place in the author's file."""

from __future__ import annotations

from typing import Any


class Problem(Exception):
    """Raised by axis rules and checks; the tracer turns it into a diagnostic at the author's line.

    slug    which entry of the catalogue this is
    facts   what fills the entry's message and remedy
    """

    def __init__(self, slug: str, **facts: Any) -> None:
        super().__init__(slug)
        self.slug = slug
        self.facts = facts
