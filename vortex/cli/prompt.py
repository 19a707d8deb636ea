"""The prompt of `vortex run` when none is given: real English prose that every CPython brings along."""

from __future__ import annotations

TOPICS = ("objects", "execmodel")
LAST_WORDS = "Exceptions are a means of breaking out of"
CHARACTERS = 8000  # about 2,000 tokens


def long_prompt() -> str:
    """A passage of Python's manual on objects, names and exceptions that breaks off within a sentence."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[topic].strip() for topic in TOPICS if topic in topics)
    end = text.find(LAST_WORDS)
    end = end + len(LAST_WORDS) if end >= 0 else text.rfind(" ")
    start = text.find("\n\n", max(end - CHARACTERS, 0))
    return text[start:end].strip()
