"""Methods that score every token through something smaller than its key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracles.boxes import quest
from tests.oracles.convention import Case, Choice, as_fp8, as_integers, as_sign, stateless, top


def best_token(case: Case, scores: Tensor) -> Tensor:
    """Token scores [n * block] to block scores [n]: the best token speaks for its block."""
    return scores.reshape(case.n, case.block).amax(1)


def finished(case: Case) -> Tensor:
    return case.k[: case.n * case.block]


def double_sparsity(case: Case) -> Tensor:
    channels = case.parameters["heavy"].long()
    labels = as_integers(finished(case)[:, channels], 7)
    return best_token(case, (labels @ case.q[:, channels].T).mean(1))


def lightning_indexer(case: Case) -> Tensor:
    keys = as_fp8(finished(case) @ case.parameters["index_k"])
    scores = case.k.new_zeros(len(keys))
    for j, head in enumerate(case.q):
        weight = head @ case.parameters["weight"][j]
        scores += weight * torch.relu(keys @ (head @ case.parameters["index_q"]))
    return best_token(case, scores)


def magicpig(case: Case) -> Tensor:
    planes = case.parameters["planes"]
    bits = case.hyper["bits"]
    # A table's bucket is the integer that its sign bits spell.
    places = 2 ** torch.arange(bits)
    buckets = ((torch.einsum("td,dab->tab", finished(case), planes) >= 0) * places).sum(2)
    mine = ((torch.einsum("hd,dab->hab", case.q, planes) >= 0) * places).sum(2)
    collisions = (buckets[:, None] == mine[None]).sum(2)
    sampled = (collisions >= 2).sum(1)
    return sampled.reshape(case.n, case.block).sum(1).to(case.k.dtype)


def sign_bits(case: Case) -> Tensor:
    """Each key is replaced by its signs times the block's mean magnitude per channel, then scored exactly."""
    k = case.key_blocks()
    approximate = as_sign(k) * k.abs().mean(1, keepdim=True)
    return torch.einsum("ntd,hd->nth", approximate, case.q).mean(2).amax(1)


def sparq(case: Case) -> Tensor:
    magnitude = case.q.abs()
    order = sorted(range(case.q.shape[1]), key=lambda d: (-float(magnitude.sum(0)[d]), d))
    channels = torch.tensor(sorted(order[: case.hyper["channels"]]))
    scores = case.k.new_zeros(case.n)
    for head in case.q:
        covered = head[channels].abs().sum() / head.abs().sum()
        temperature = torch.sqrt(case.q.shape[1] * covered)
        p = torch.softmax(finished(case)[:, channels] @ head[channels] / temperature, dim=0)
        scores += p.reshape(case.n, case.block).sum(1)
    return scores


def loki(case: Case) -> Tensor:
    basis = case.parameters["components"]
    return best_token(case, ((finished(case) @ basis) @ (case.q @ basis).T).mean(1))


def product_quantization(case: Case) -> Tensor:
    """Keys are rebuilt from their nearest codewords and scored exactly."""
    book = case.parameters["codebook"]
    parts = finished(case).reshape(len(finished(case)), len(book), -1)
    rebuilt = torch.zeros_like(parts)
    for m, words in enumerate(book):
        distance = (parts[:, m, None] - words[None]).square().sum(2)
        rebuilt[:, m] = words[distance.argmin(1)]
    return best_token(case, (rebuilt.flatten(1) @ case.q.T).mean(1))


def coarse_to_fine(case: Case, state: dict[str, Any]) -> Choice:
    query = case.q.mean(0)
    coarse = best_token(case, as_sign(finished(case)) @ query)
    kept = top(case, coarse, k=case.hyper["candidates"])
    fine = best_token(case, finished(case) @ query)
    return Choice(top(case, fine, among=sorted(kept)))


def twilight(case: Case, state: dict[str, Any]) -> Choice:
    """Reserved blocks, then the heaviest of the first selection until all together weigh p."""
    kept = sorted(top(case, quest(case)) - {case.n})
    keys = as_integers(case.key_blocks(), 7)[kept]
    scores = torch.einsum("ntd,hd->hnt", keys, case.q) * case.scale
    p = torch.softmax(scores.flatten(1), dim=1).reshape(scores.shape).sum(2).mean(0)
    weight = dict(zip(kept, p.tolist(), strict=True))
    chosen = case.reserved()
    mass = sum(weight[b] for b in chosen if b in weight)
    for b in sorted(kept, key=lambda b: (-weight[b], b)):
        if mass >= case.hyper["p"]:
            break
        if b not in chosen:
            chosen.add(b)
            mass += weight[b]
    return Choice(chosen)


ORACLES = {
    "double_sparsity": stateless(double_sparsity),
    "lightning_indexer": stateless(lightning_indexer),
    "magicpig": stateless(magicpig),
    "sign_bits": stateless(sign_bits),
    "sparq": stateless(sparq),
    "loki": stateless(loki),
    "product_quantization": stateless(product_quantization),
    "coarse_to_fine": coarse_to_fine,
    "twilight": twilight,
}
