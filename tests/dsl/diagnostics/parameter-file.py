from vortex import *


class Example(vFlow):
    gate = Parameter("gate", "layer kv dim r=16", file="gate.safetensors")

    def forward_cache(self, c):
        c["low"] = Mean(GeMM(c["k"], self.gate))  # <- GeMM(c["k"], self.gate)

    def forward_indexer(self, q, c):
        return topK(Max(GeMM(c["low"], GeMM(q, self.gate).T)))
