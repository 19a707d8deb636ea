"""Whether two selections mean the same, given that scores are computed with rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vortex.dsl.ir import Policy
from vortex.vtensor.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor


def score_error(fp32: Tensor, fp64: Tensor) -> Tensor:
    """The measured error of the scores of one request, fp64 [kv heads]: the largest finite difference.

    fp32, fp64: [kv heads, n], from `ReferenceRunner.scores` in either dtype.
    """
    import torch

    difference = (fp32.double() - fp64).abs()
    known = torch.where(difference.isfinite(), difference, 0.0)
    return known.amax(-1) if known.shape[-1] else known.new_zeros(known.shape[0])


def disagreements(
    selection: Selection,
    reference: Selection,
    fp32: Sequence[Tensor],
    fp64: Sequence[Tensor],
    policy: Policy,
) -> list[str]:
    """Where a selection does not agree with that of the fp32 reference; empty where it does.

    fp32, fp64  per request, the scores [kv heads, n] of the reference executor in either dtype
    policy      says which blocks are reserved, so attended whatever their score

    Agreement: counts are equal, and every block that only one of the two attends has an fp64 score within the
    error of the k-th, the lowest among the candidates that the reference selected. The error is the measured one
    twice: once for the reference, once for what is tested.
    """
    found = []
    for request, exact in enumerate(fp64):
        errors = score_error(fp32[request], exact).tolist()
        for head, (scores, error) in enumerate(zip(exact.tolist(), errors, strict=True)):
            ours, theirs = _attended(selection, request, head), _attended(reference, request, head)
            what = f"request {request}, KV head {head}"
            if len(ours) != len(theirs):
                found.append(f"{what}: {len(ours)} blocks are attended, the reference attends {len(theirs)}")
                continue
            n = len(scores)
            candidates = range(policy.sink_blocks, n - policy.recent_blocks)
            kth = min((scores[block] for block in theirs if block in candidates), default=None)
            for block in sorted(ours ^ theirs):
                if kth is None or block not in candidates:
                    found.append(f"{what}: block {block} is no candidate, and only one attends it")
                elif scores[block] != kth and not abs(scores[block] - kth) <= 2 * error:
                    found.append(
                        f"{what}: block {block} has the score {scores[block]!r}, the k-th has {kth!r}: further "
                        f"apart than twice the measured error {error!r}"
                    )
    return found


def agree(
    selection: Selection,
    reference: Selection,
    fp32: Sequence[Tensor],
    fp64: Sequence[Tensor],
    policy: Policy,
) -> bool:
    """Whether `disagreements` finds none."""
    return not disagreements(selection, reference, fp32, fp64, policy)


def _attended(selection: Selection, request: int, head: int) -> set[int]:
    count = int(selection.counts[request, head])
    return set(selection.ids[request, head, :count].tolist())
