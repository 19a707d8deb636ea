"""Text from tokens as they come, held back while it may still change or become a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"  # what a tokenizer shows for bytes that are no whole character yet


class TextStream:
    """Text of one request.

    text     everything that is certain so far, up to a stop string
    stopped  a stop string came; it is not part of the text
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [string for string in stop_strings if string]
        self._tokens: list[int] = []
        self._settled = 0  # tokens whose text is in `_whole`
        self._context = 0  # where decoding starts, so that a leading space is not lost
        self._whole = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Adds a token; returns the text that became certain."""
        self._tokens.append(token)
        return self._advance(last=False)

    def finish(self) -> str:
        """No more tokens come: returns what was held back."""
        return self._advance(last=True)

    def _advance(self, last: bool) -> str:
        if self._tokenizer is None or self.stopped:
            return ""
        before = self._decode(self._tokens[self._context : self._settled])
        after = self._decode(self._tokens[self._context :])
        if last or not after.endswith(UNFINISHED):
            self._whole += after[len(before) :]
            self._context, self._settled = self._settled, len(self._tokens)
        certain = self._certain(last)
        piece = certain[len(self.text) :]
        self.text = certain
        return piece

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _certain(self, last: bool) -> str:
        whole = self._whole
        found = [at for at in (whole.find(string) for string in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return whole[: min(found)]
        if last:
            return whole
        held = 0
        for string in self._stop:
            for length in range(min(len(string) - 1, len(whole)), held, -1):
                if whole.endswith(string[:length]):
                    held = length
                    break
        return whole[: len(whole) - held]
