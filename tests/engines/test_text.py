"""Streams of text: what is certain comes at once, what may still change is held back."""

import pytest

from vortex.engines.transformers.text import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes; 0 is a special token."""

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        return bytes(token for token in tokens if token).decode("utf-8", errors="replace")


def stream(text: str, stop=()):
    s = TextStream(Bytes(), stop)
    pieces = []
    for token in text.encode():
        pieces.append(s.push(token))
        if s.stopped:
            break
    pieces.append(s.finish())
    return s, pieces


def test_pieces_join_to_the_text():
    s, pieces = stream("plain text")
    assert "".join(pieces) == s.text == "plain text"
    assert pieces[0] == "p"


def test_half_a_character_is_held_back():
    s, pieces = stream("aé日b")
    assert pieces == ["a", "", "é", "", "", "日", "b", ""]
    assert s.text == "aé日b"


def test_a_broken_character_at_the_end_is_shown():
    s = TextStream(Bytes())
    assert s.push(0xE6) == ""
    assert s.finish() == s.text == "\ufffd"


def test_a_stop_string_is_cut_and_never_shown_in_part():
    s, pieces = stream("yes###no", ["###"])
    assert s.stopped
    assert "".join(pieces) == s.text == "yes"
    assert all("#" not in piece for piece in pieces)


def test_what_only_begins_like_a_stop_string_is_shown():
    s, pieces = stream("a##b##", ["###"])
    assert not s.stopped
    assert "".join(pieces) == s.text == "a##b##"


@pytest.mark.parametrize("stop", [["cd", "bcd"], ["bcd", "cd"]])
def test_the_first_of_several_stop_strings_counts(stop):
    assert stream("abcdef", stop)[0].text == "a"


def test_special_tokens_have_no_text():
    s = TextStream(Bytes())
    assert [s.push(97), s.push(0), s.push(98)] == ["a", "", "b"]


def test_without_a_tokenizer_there_is_no_text():
    s = TextStream(None, ["x"])
    assert (s.push(5), s.finish(), s.text, s.stopped) == ("", "", "", False)
