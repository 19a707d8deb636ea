from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):  # <- def forward_indexer
        return Example.best(q)

    def best(x):
        return Example.best(x)
