"""Rising relevance: prefer blocks whose probability grows from step to step.

Formula: p_b = max_h softmax_b(scale * q_h . mean k_b); s_b = p_b + gain * relu(p_b - ema_b); then ema_b
+= rate * (p_b - ema_b).
Paper: none; a moving average as in Adam (Kingma and Ba 2014, arXiv:1412.6980) over the relevance that
TOVA and H2O use as it stands.
Blocks: the average belongs to the request and starts at 0, so at the first step every block rises alike.
Recommended: gain 1, rate 0.25.
"""

from vortex import *


class Rising(vFlow):
    gain = 1.0
    rate = 0.25

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Max(Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block"), dim="head")
        before = c.get("ema", 0.0)
        c["ema"] = before + self.rate * (p - before)
        return topK(p + self.gain * Relu(p - before))
