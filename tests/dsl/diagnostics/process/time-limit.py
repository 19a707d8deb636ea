from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        n = 1
        while n > 0:
            n = n + 1
        return First(n)
