from vortex import *


class Example(vFlow):
    reuse_steps = 4  # <- 4

    def forward_indexer(q, c):
        c["acc"] = c.get("acc", 0.0) + Sum(q, dim=("head", "dim"))
        return topK(Cast(Positions().index, "fp32") + c["acc"])
