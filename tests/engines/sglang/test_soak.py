"""Many requests of random lengths, some aborted, some with a shared beginning: nothing is wrong and nothing leaks."""

import asyncio
import random

import pytest

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import sparse

ROUNDS = 5
MIB = 2**20


@pytest.fixture(scope="module")
def server(model):
    with sparse(model, "Remembering", max_total_tokens=2048, max_running_requests=8) as server:
        yield server


def requests(count: int, seed: int):
    """(prompt, tokens to generate, tokens after which it is aborted or None)."""
    draw = random.Random(seed)
    beginnings = [prompt(length, 100 + length) for length in (48, 64, 100, 150)]
    for _ in range(count):
        start = draw.choice(beginnings) if draw.random() < 0.5 else []
        tokens = draw.choice((1, 2, draw.randint(3, 40)))
        stop = draw.randint(1, tokens) if draw.random() < 0.15 else None
        yield [*start, *prompt(draw.randint(1, 120), draw.randint(0, 10**6))], tokens, stop


async def soak(server, count: int, seed: int, at_once: int = 16) -> int:
    """Runs the requests, a few at once; how many came to their end."""
    gate = asyncio.Semaphore(at_once)

    async def one(number, given):
        ids, tokens, stop = given
        async with gate:
            # SGLang aborts every request whose name begins with the one that is given.
            came = await server.stream(ids, tokens, f"{seed}-{number:05}", stop)
            assert came == tokens or stop is not None
            return came == tokens

    return sum(await asyncio.gather(*(one(*each) for each in enumerate(requests(count, seed)))))


def soaked(server, tmp_path, count: int) -> None:
    sizes = []
    for number in range(ROUNDS):
        finished = server.run(soak(server, count // ROUNDS, number))
        assert finished >= 0.7 * (count // ROUNDS)
        found = server.probe(tmp_path)
        assert found["wrong"] == [] and found["valid"] > 20
        assert found["tokens"] == found["all_tokens"]
        assert found["rows"] == found["all_rows"]
        assert found["steps"] <= 8 and found["pending"] <= 64
        sizes.append(found["rss"])
    # The first rounds fill caches; afterwards memory stays.
    assert sizes[-1] - sizes[ROUNDS // 2] < 24 * MIB, [size // MIB for size in sizes]


def test_requests_of_all_kinds(server, tmp_path):
    soaked(server, tmp_path, 150)


@pytest.mark.slow
def test_two_thousand_requests(server, tmp_path):
    soaked(server, tmp_path, 2000)
