"""Blocks scored through a mean key, a compressed key or a few numbers a block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, conv1d, cosine_similarity, max_pool1d, silu

from tests.oracles.convention import Case, Choice, stateless, top


def logits(case: Case) -> Tensor:
    """q_h . mean key of each finished block, [n, group], unscaled."""
    return torch.einsum("ntd,hd->nh", case.key_blocks(), case.q) / case.block


def probabilities(case: Case) -> Tensor:
    return torch.softmax(logits(case) * case.scale, dim=0)


def nsa(case: Case) -> Tensor:
    """Eq. 7 with an MLP over keys and positions beside the mean, eq. 8 over all, eqs. 9 and 10 summed."""
    size, weights = case.hyper["compression"], case.parameters
    parts = case.key_blocks().unflatten(1, (-1, size))
    hidden = silu(torch.einsum("nptd,dr->nptr", parts + weights["position"], weights["up"]))
    compressed = parts.mean(2) + torch.einsum("nptr,rd->npd", hidden, weights["down"]) / size
    scores = torch.einsum("npd,hd->hnp", compressed, case.q) * case.scale
    p = torch.softmax(scores.flatten(1), dim=1).reshape(scores.shape)
    return p.sum((0, 2))


def infllm(case: Case) -> Tensor:
    scores = []
    for block in case.key_blocks():
        order = (block @ block.mean(0)).topk(case.hyper["representatives"]).indices
        scores.append((block[order] @ case.q.T).sum())
    return torch.stack(scores)


def infllm_v2(case: Case) -> Tensor:
    """Kernels of half a block at strides of a quarter, those that lie inside a block."""
    quarter = case.block // 4
    kernels = torch.stack(
        [case.key_blocks()[:, quarter * j : quarter * (j + 2)].mean(1) for j in range(3)], dim=1
    )
    scores = torch.einsum("njd,hd->hnj", kernels, case.q) * case.scale
    return torch.softmax(scores.flatten(1), dim=1).reshape(scores.shape).sum(0).amax(1)


def seer_attention(case: Case) -> Tensor:
    """As the paper writes it: poolings and the group's heads, each concatenated, through a linear layer."""
    k, weights = case.key_blocks(), case.parameters
    pooled = torch.cat([k.amax(1), k.amin(1), k.mean(1)], dim=1)
    keys = pooled @ torch.cat([weights["k_max"], weights["k_min"], weights["k_mean"]])
    query = case.q.flatten() @ weights["q"].flatten(0, 1)
    return keys @ query


def moba(case: Case, state: dict[str, Any]) -> Choice:
    scores = logits(case).sum(1)
    return Choice(top(case, scores, k=case.hyper["top"]), scores)


def pyramidkv(case: Case) -> Tensor:
    return pooled(probabilities(case).sum(1), case.hyper["kernel"])


def pooled(scores: Tensor, kernel: int) -> Tensor:
    """Maximum over a centred odd window that ends at the row's ends."""
    if not len(scores):
        return scores
    return max_pool1d(scores[None, None], kernel, stride=1, padding=kernel // 2)[0, 0]


def value_norm(case: Case) -> Tensor:
    return probabilities(case).sum(1) * case.value_blocks().abs().sum(2).mean(1)


def smooth(case: Case) -> Tensor:
    p = probabilities(case).amax(1)
    kernel = p.new_tensor([0.25, 0.5, 0.25])
    return conv1d(p[None, None], kernel[None, None], padding=1)[0, 0]


def channel_groups(case: Case) -> Tensor:
    """A group's weight multiplies each of its channels."""
    weight = case.parameters["mask"].repeat_interleave(case.q.shape[1] // case.hyper["groups"])
    return (case.key_blocks().mean(1) * weight) @ case.q.mean(0)


def keydiff(case: Case) -> Tensor:
    unit = case.key_blocks() / case.key_blocks().norm(dim=2, keepdim=True)
    anchor = unit.reshape(-1, case.k.shape[1]).mean(0)
    return -cosine_similarity(case.key_blocks(), anchor, dim=2).mean(1)


def key_norm(case: Case) -> Tensor:
    return -avg_pool1d(case.key_blocks().norm(dim=2).flatten()[None], case.block)[0]


def shadowkv(case: Case, state: dict[str, Any]) -> Choice:
    landmark = case.key_blocks().mean(1)
    fit = cosine_similarity(case.key_blocks(), landmark[:, None], dim=2).amin(1)
    scores = probabilities(case).amax(1)
    found = top(case, scores, k=case.hyper["landmarks"])
    return Choice(found | top(case, -fit, k=case.hyper["outliers"]))


def top_theta(case: Case, state: dict[str, Any]) -> Choice:
    """Blocks at or above the threshold; the best of them where the budget holds fewer."""
    scores = (logits(case) * case.scale).amax(1) - case.parameters["theta"]
    passing = torch.where(scores >= 0, scores, -torch.inf)
    return Choice(top(case, passing), scores)


def duo_attention(case: Case) -> Tensor:
    if case.parameters["gate"] > 0.5:
        return logits(case).amax(1)
    return torch.arange(case.n, dtype=case.k.dtype)


ORACLES = {
    "block_topk": stateless(lambda case: logits(case).mean(1)),
    "softmax_topk": stateless(lambda case: probabilities(case).amax(1)),
    "nsa_selection": stateless(lambda case: probabilities(case).sum(1)),
    "nsa": stateless(nsa),
    "infllm": stateless(infllm),
    "infllm_v2": stateless(infllm_v2),
    "seer_attention": stateless(seer_attention),
    "moba": moba,
    "pyramidkv": stateless(pyramidkv),
    "value_norm": stateless(value_norm),
    "smooth": stateless(smooth),
    "channel_groups": stateless(channel_groups),
    "keydiff": stateless(keydiff),
    "key_norm": stateless(key_norm),
    "shadowkv": shadowkv,
    "top_theta": top_theta,
    "duo_attention": stateless(duo_attention),
    "tidal_decode": stateless(lambda case: logits(case).amax(1)),
}
