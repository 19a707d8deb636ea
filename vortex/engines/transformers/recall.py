"""How much of dense attention's probability the attended tokens hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vortex.engines.transformers.attention import Attended
from vortex.engines.transformers.pool import PagedPool
from vortex.vtensor.batch import Batch


@dataclass(frozen=True)
class Recall:
    """Attention mass on the attended tokens, a mean over query heads and requests of one step.

    step    decode step, counted from 0
    layers  one figure a layer, 1.0 where the layer was dense
    """

    step: int
    layers: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.layers) / len(self.layers)


def measure(step: int, attended: list[Attended], pool: PagedPool, batch: Batch) -> Recall:
    """Softmax of q K over all tokens, in fp32, summed over what each layer attended."""
    return Recall(step, tuple(_layer(entry, pool, batch) for entry in attended))


def _layer(entry: Attended, pool: PagedPool, batch: Batch) -> float:
    heads, block_size = batch.heads, batch.block_size
    keys = pool.k[entry.layer]
    masses = []
    for row, length in enumerate(batch.lengths.tolist()):
        if length == 0:
            continue
        if bool(entry.selection.dense[row]):
            masses.append(1.0)
            continue
        position = torch.arange(length, device=keys.device)
        slots = batch.page_table[row, position // batch.page_size].to(torch.int64) * batch.page_size
        k = keys.index_select(0, slots + position % batch.page_size).float()  # [length, kv, dim]
        q = entry.q[row].float().view(heads.kv, heads.group, heads.dim)
        weights = torch.einsum("hgd,lhd->hgl", q, k).mul_(entry.scale).softmax(dim=-1)
        seen = torch.zeros(heads.kv, -(-length // block_size) + 1, device=keys.device)
        ids = entry.selection.ids[row].to(torch.int64)
        used = torch.arange(ids.shape[1], device=ids.device) < entry.selection.counts[row, :, None]
        # What is no block goes into a last column that is cut off.
        seen.scatter_(1, torch.where(used, ids, seen.shape[1] - 1), 1.0)
        mask = seen[:, :-1].repeat_interleave(block_size, dim=1)[:, :length]
        masses.append(float((weights * mask[:, None]).sum(dim=-1).mean()))
    return sum(masses) / max(len(masses), 1)
