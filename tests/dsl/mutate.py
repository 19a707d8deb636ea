"""Mutations of algorithm files: what hands, habits and accidents do to them. The same for the same seed."""

from __future__ import annotations

import ast
import io
import keyword
import random
import re
import tokenize
import warnings
from collections.abc import Callable

Mutation = Callable[[random.Random, str], str]
MUTATIONS: list[Mutation] = []


def mutation(made: Mutation) -> Mutation:
    MUTATIONS.append(made)
    return made


def mutate(seed: int, sources: list[str]) -> str:
    """One of the sources with one to four mutations; one in four of those that Python cannot read is kept."""
    rng = random.Random(seed)
    original = rng.choice(sources)
    while True:
        text = original
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
            text = rng.choice(MUTATIONS)(rng, text)
        if text != original and (readable(text) or rng.random() < 0.25):
            return text


def readable(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
    return True


def tokens(text: str) -> list[tuple[int, int]]:
    """Start and end of every token, as offsets; words where Python cannot tokenise the text."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text).readline))
        spans = [(starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1]) for t in found]
        return [(a, b) for a, b in spans if 0 <= a < b <= len(text) and text[a:b].strip()] or [(0, len(text))]
    except (tokenize.TokenError, SyntaxError, IndexError):
        return [each.span() for each in re.finditer(r"\w+|\S", text)] or [(0, len(text))]


def spans(text: str, pattern: str) -> list[tuple[int, int]]:
    return [each.span() for each in re.finditer(pattern, text)]


def replaced(text: str, span: tuple[int, int], new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


@mutation
def a_token_goes(rng: random.Random, text: str) -> str:
    return replaced(text, rng.choice(tokens(text)), "")


@mutation
def a_token_comes_twice(rng: random.Random, text: str) -> str:
    a, b = rng.choice(tokens(text))
    return replaced(text, (a, b), text[a:b] + " " + text[a:b])


@mutation
def two_tokens_change_places(rng: random.Random, text: str) -> str:
    found = tokens(text)
    if len(found) < 2:
        return text
    (a, b), (c, d) = sorted(rng.sample(found, 2))
    return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


@mutation
def a_token_becomes_another_of_the_file(rng: random.Random, text: str) -> str:
    found = tokens(text)
    a, b = rng.choice(found)
    return replaced(text, rng.choice(found), text[a:b])


@mutation
def a_name_is_misspelt(rng: random.Random, text: str) -> str:
    names = [(a, b) for a, b in spans(text, r"\b[A-Za-z_]\w+") if not keyword.iskeyword(text[a:b])]
    if not names:
        return text
    a, b = rng.choice(names)
    word = text[a:b]
    at = rng.randrange(len(word))
    misspelt = rng.choice([word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word.lower(), word.upper(),
                           word + "s", word.swapcase()])  # fmt: skip
    return replaced(text, (a, b), misspelt)


NUMBERS = ["0", "-1", "1", "2", "7", "0.5", "1e9", "10**12", "1e308*10", "-0.0", "3.5", "None", "True", "99999999999",
           "float('nan')", "1j", "'2'", "2**31"]  # fmt: skip


@mutation
def a_number_changes(rng: random.Random, text: str) -> str:
    found = spans(text, r"\b\d+(\.\d+)?\b")
    return replaced(text, rng.choice(found), rng.choice(NUMBERS)) if found else text


@mutation
def two_lines_change_places(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


@mutation
def a_line_goes(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


@mutation
def a_line_moves_in_or_out(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = "    " + lines[at] if rng.random() < 0.5 else lines[at][4:]
    return "\n".join(lines)


AXES = ['"block"', '"token"', '"head"', '"dim"', '"heads"', "0", "1", "2", "3", "-1", "-7", "(1, 2)", "()",
        "None", "q",
        '("block", "block")', "[1]", "True"]  # fmt: skip


@mutation
def dim_changes(rng: random.Random, text: str) -> str:
    found = spans(text, r"(?<=dim=)(\([^)]*\)|[^,)]+)")
    return replaced(text, rng.choice(found), rng.choice(AXES)) if found else text


OPERATORS = ["Sum", "Mean", "Max", "Min", "GeMM", "topK", "topP", "Threshold", "First", "Last", "Union", "Gather",
             "Scatter", "Softmax", "Cast", "Split", "Merge", "Rename", "Concat", "Transpose", "Where", "Exp",
             "ArgMax",
             "Conv1d", "MaxPool1d", "CumSum", "Normalize", "L2Norm", "Parameter", "Positions", "attn", "max", "sum",
             "len", "float", "print", "list", "sorted", "vFlow", "isinstance", "type", "repr", "hash",
             "iter"]  # fmt: skip


@mutation
def a_call_calls_something_else(rng: random.Random, text: str) -> str:
    found = spans(text, r"\b[A-Za-z_]\w*(?=\()")
    return replaced(text, rng.choice(found), rng.choice(OPERATORS)) if found else text


IDIOMS = [".mean(-1)", ".T", ".T.T", ".shape", ".shape[1]", ".unsqueeze(0)", ".item()", "[0]", "[:, 0]", "[:, 1:]",
          "[:, :, ::2]", "[q]", "[None]", "[...]", "(q)", ".detach().cpu().numpy()", " + 1", " @ q",
          " @ q.T", " ** 2",
          " if q else c", " and q", " > 0", ".foo", "['k']", ".get('k')", ".get('acc', 0.0)",
          ".get('acc', q)", ".keys()",
          " is None", " in c", ".__class__", ".__dict__", ".node", ".type", ".owner", " % 3", " // 0",
          "[:, :, 0, 0, 0]",
          " << 2", ".max(dim=-1, keepdim=True)[0]", " == q", " != None", " or 0", ".topk(8)",
          ".as_tensor(q)"]  # fmt: skip


@mutation
def an_idiom_is_appended(rng: random.Random, text: str) -> str:
    found = [
        *spans(text, r"\b[a-z_]\w*(?=[\s,)*+])"),
        *spans(text, r"(?<=\))(?=[\s,)])"),
        *spans(text, r'c\["\w+"\]'),
    ]
    if not found:
        return text
    _, end = rng.choice(found)
    return text[:end] + rng.choice(IDIOMS) + text[end:]


STATEMENTS = [
    "self.total = s", "self.acc = q", "c['k'] = q", "c['v'] += 1", "del c['k']", "c['new'] = 0.0", "c['new'] = q",
    "c[0] = q", "c[q] = q", "c['acc'] = c.get('acc', 0.0) + 1", "c['a'] = c.get('a')", "if q: pass",
    "for x in q: pass",
    "while True: break", "assert q", "import torch", "import numpy as np", "q = q.float()", "q = torch.exp(q)",
    "q = np.maximum(q, 0)", "raise ValueError('no')", "return", "return None", "return q", "return 3", "return c",
    "return topK(q)", "return (q, c)", "yield q", "global q", "nonlocal q", "q = None", "c = None", "q = q + None",
    "q[:] = 0", "q.x = 1", "print(q, c)", "q = [q for _ in range(3)]", "q = max(q)", "q = sum(q)", "x = len(q)",
    "x = {q: 1}", "x = f'{q}'", "q = lambda: q", "with q: pass", "try: q.mean()\n        except: pass", "q -= c['k']",
    "x = sorted([q, q])", "x = q.shape[0] * [q]", "x = c['k'].shape[1] + 1", "x = range(c['k'].shape[1])", "q = Exp",
    "q = Exp()", "q = Exp(q, q)", "q = Sum(q, axis=1)", "q = Sum(q, 1)", "q = q.T.T.T", "x = 1 / 0", "x = [][0]",
    "x = {}['a']", "x = undefined", "x = undefined.attribute", "x = self", "exec('q = 1')", "x = eval('q')",
    "q = Rename(q, head='block')", "q = Split(q, 'dim', a=2, b=64)", "q = Merge(q, 'head', 'dim', to='dim')",
    "q = Cast(q, 'int9')", "q = Parameter('w', 'dim r=4', init='normal') @ q",
    "q = Parameter('w', 'what', init='ones')",
    "i = First(3)", "i = topK(Positions().index)", "i = Union()", "c['set'] = First(2)", "x = open('/nonexistent')",
    "q = (lambda f: f(f))(lambda f: f(f))", "for _ in range(3): q = q + q", "async def f(): pass",
    "class X(vFlow): pass",
    "def forward_cache(c): pass", "type(q)()", "object.__setattr__(q, 'type', None)", "q = q.__add__(1)",
    "for _ in range(40): q = q @ q.T @ q", "raise SystemExit", "import sys; sys.exit(3)", "q = q ** q ** q",
]  # fmt: skip


@mutation
def a_statement_comes_in(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    bodies = [at for at, line in enumerate(lines) if line.startswith("        ")] or [len(lines) - 1]
    lines.insert(rng.choice(bodies), "        " + rng.choice(STATEMENTS))
    return "\n".join(lines)


ATTRIBUTES = ["block_size = 0", "block_size = 24", "block_size = 2**20", "block_size = '16'",
              "budget = None", "budget = -1",
              "budget = 'blocks +'", "budget = 'import os'", "budget = '1/0'", "budget = 'x' * 5000",
              "sink_blocks = 1.5",
              "recent_blocks = None", "dense_layers = '5-2'", "dense_layers = object()", "dense_below = 'never'",
              "share_heads = 0", "reuse_steps = 0", "reuse_layers = True", "scale = 3", "unused = 1", "T = topK(1)",
              "forward_cache = None", "forward_indexer = 7", "forward_indexer = property(lambda self: 1)",
              "forward_cache = lambda c: None", "__slots__ = ()", "w = Parameter('w', 'dim', init='ones')",
              "budget = lambda: 4", "def __init__(self): self.x = 1", "def __getattr__(self, name): return 1",
              "def __setattr__(self, a, b): pass", "block_size: int", "budget: str = '8'"]  # fmt: skip


@mutation
def an_attribute_comes_in(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    heads = [at for at, line in enumerate(lines) if line.startswith("class ")]
    if heads:
        lines.insert(rng.choice(heads) + 1, "    " + rng.choice(ATTRIBUTES))
    return "\n".join(lines)


ODD = [
    "é",
    "ключ",
    "\u200b",
    "\u2028",
    "\x00",
    "\ufeff",
    "\t",
    "\r",
    "\x0c",
    "𝔮",
    "“",
    "\u202e",
    "½",
    "²",
    "🙂",
    "\\",
    "ſ",
]


@mutation
def an_odd_character_comes_in(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(ODD) + text[at:]


@mutation
def the_file_ends_early(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


@mutation
def a_bracket_or_quote_goes(rng: random.Random, text: str) -> str:
    found = spans(text, r"[\[\](){}\"':,=.]")
    return replaced(text, rng.choice(found), rng.choice(["", "", "(", ")", "]", '"', ":"])) if found else text


@mutation
def an_import_changes(rng: random.Random, text: str) -> str:
    return text.replace("from vortex import *", rng.choice([
        "", "import vortex", "from vortex import vFlow", "from vortex import topk", "from vortx import *",
        "from vortex.dsl import *", "import torch\nfrom vortex import *", "from vortex import *\nfrom math import *",
        "from vortex import *\nMax = max", "from vortex import *\nimport numpy as np",
    ]))  # fmt: skip


@mutation
def a_signature_changes(rng: random.Random, text: str) -> str:
    found = spans(text, r"(?<=forward_)(cache|indexer)\([^)]*\)")
    if not found:
        return text
    return replaced(text, rng.choice(found), rng.choice([
        "cache(c)", "indexer(q, c)", "indexer(c, q)", "indexer(q)", "indexer()", "cache(q, c)", "cache(self)",
        "indexer(self, q, c, x)", "indexer(*args)", "indexer(q, c, **more)", "cache(self, c, x=1)", "index(q, c)",
        "indexer(q, c=None)", "indexer(q, c, /)", "indexer(q, *, c)",
    ]))  # fmt: skip
