from vortex import *


class Example(vFlow):
    first = First(2)  # <- First(2)

    def forward_indexer(self, q, c):
        return self.first
