"""The prompt of `vortex run` when none is given: real English prose that every CPython brings along."""

from __future__ import annotations

import re

TOPICS = ("execmodel", "objects")
LAST_WORDS = "Even the importance of object identity is affected in some sense:"
CHARACTERS = 8000  # about 1,800 tokens


def long_prompt() -> str:
    """A passage of Python's manual on names, exceptions and objects that breaks off within a sentence."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[topic].strip() for topic in TOPICS if topic in topics)
    # Versions of Python break the lines of their manual differently.
    found = re.search(r"\s+".join(map(re.escape, LAST_WORDS.split())), text)
    end = found.end() if found else text.rfind(" ")
    start = text.find("\n\n", max(end - CHARACTERS, 0))
    return text[start:end].strip()
