"""Top-theta: calibrated thresholds replace the search for the k-th score.

Formula: attend block b if max_h scale * q_h . mean_{t in b} k_t >= theta, theta per layer and KV head.
Paper: Berestizshevsky et al. 2025, arXiv:2502.08363.
Blocks: block means stand for tokens; the budget bounds how many blocks may pass.
Recommended: theta calibrated for an effective k of 128 tokens or more; 0 without a file.
"""

from vortex import *


class TopTheta(vFlow):
    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        s = Max(GeMM(c["centroids"], q.T), dim="head") * self.scale
        return Threshold(s - Parameter("theta", "layer kv", init="zeros"), 0.0)
