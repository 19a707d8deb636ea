from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        w = Softmax(Max(GeMM(c["mean"], q.T)) * self.scale)
        return topP(w, 1 - Max(w, dim="block"))  # <- topP(w, 1 - Max(w, dim="block"))
