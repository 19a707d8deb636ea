"""Many requests of random lengths, some aborted, some with a shared beginning: nothing is wrong and nothing leaks."""

import asyncio
import random

import pytest
import torch

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import Generated, embedded, forced, sparse

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


async def soak(server, count: int, seed: int, at_once: int = 16) -> list[tuple[list[int], list[int]]]:
    """Runs the requests, a few at once; prompt and answer of those that came to their end, in one go.

    What a retracted request generated is a prompt when it goes on, and so attended densely: its answer is another.
    """
    gate = asyncio.Semaphore(at_once)

    async def one(number, given):
        ids, tokens, stop = given
        async with gate:
            # SGLang aborts every request whose name begins with the one that is given.
            came, retracted = await server.stream(ids, tokens, f"{seed}-{number:05}", stop)
            assert len(came) == tokens or stop is not None
            return (ids, came) if len(came) == tokens and not retracted else None

    found = await asyncio.gather(*(one(*each) for each in enumerate(requests(count, seed))))
    return [each for each in found if each is not None]


def share_of_best(engine, answers) -> float:
    """Part of the tokens that the embedded engine, which has one request at a time, finds best too.

    State that a request took over from another one, or lost, changes what is selected and so the tokens.
    """
    same = []
    for ids, tokens in answers:
        generated = Generated(tuple(tokens), (), (), 0)
        same += (forced(engine, ids, generated)[1] == torch.tensor(tokens)).tolist()
    return sum(same) / len(same)


def nothing_wrong(found) -> None:
    """Of what a probe found: entries are those of what lies in the pool, and all pages and rows are free again."""
    assert found["wrong"] == []
    assert (found["tokens"], found["rows"]) == (found["all_tokens"], found["all_rows"])


def soaked(server, engine, tmp_path, count: int, same: float = 0.99) -> None:
    """same: part of the tokens at least that the embedded engine finds best too."""
    sizes = []
    for number in range(ROUNDS):
        finished = server.run(asyncio.wait_for(soak(server, count // ROUNDS, number), 900))
        assert len(finished) >= 0.7 * (count // ROUNDS)
        assert share_of_best(engine, finished[-4:]) >= same
        found = server.probe(tmp_path)
        nothing_wrong(found)
        assert found["valid"] > 20
        assert found["steps"] <= 8 and found["pending"] <= 64
        sizes.append((found["rss"], found["allocated"]))
    # The first rounds fill caches; afterwards memory stays.
    for last, middle in zip(sizes[-1], sizes[ROUNDS // 2], strict=True):
        assert last - middle < 24 * MIB, sizes


@pytest.fixture(scope="module")
def engine(model):
    return embedded(model, "Remembering")


def test_requests_of_all_kinds(server, engine, tmp_path):
    soaked(server, engine, tmp_path, 150)


@pytest.mark.slow
def test_two_thousand_requests(server, engine, tmp_path):
    soaked(server, engine, tmp_path, 2000)
