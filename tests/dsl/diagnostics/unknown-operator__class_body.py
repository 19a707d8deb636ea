from vortex import *


class Example(vFlow):
    top = TOP + 1  # <- TOP

    def forward_indexer(self, q, c):
        return First(self.top)
