from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        for name in c.keys():  # <- c.keys
            pass
        return First(2)
