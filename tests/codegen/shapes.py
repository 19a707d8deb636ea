"""Lengths at the edges, and combinations of sizes in which all pairs occur."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence


def edge_lengths(page: int, k: int = 3) -> list[int]:
    """EDGE_CASES 8: around page edges; 0 is a padded slot."""
    return [1, max(page - 1, 1), page, page + 1, 0, k * page - 1, k * page, k * page + 1]


def pairwise(factors: dict[str, Sequence]) -> Iterator[dict]:
    """Rows in which any two values of different factors meet at least once; the same every time."""
    names = list(factors)
    missing = {
        (a, x, b, y) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]
    }
    order = {name: {value: at for at, value in enumerate(values)} for name, values in factors.items()}
    while missing:
        first = min(missing, key=lambda pair: (names.index(pair[0]), names.index(pair[2]), order[pair[0]][pair[1]],
                                               order[pair[2]][pair[3]]))  # fmt: skip
        row = {first[0]: first[1], first[2]: first[3]}
        for name in sorted(names, key=lambda name: -len(factors[name])):
            if name not in row:
                row[name] = max(factors[name], key=lambda value, name=name: sum(
                    _pair(names, name, value, other, row[other]) in missing for other in row))  # fmt: skip
        missing -= {_pair(names, a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)}
        yield {name: row[name] for name in names}


def _pair(names: list[str], a: str, x: object, b: str, y: object) -> tuple:
    return (a, x, b, y) if names.index(a) < names.index(b) else (b, y, a, x)
