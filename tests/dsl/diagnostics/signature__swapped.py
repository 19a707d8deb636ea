from vortex import *


class Example(vFlow):
    def forward_indexer(c, q):  # <- def forward_indexer
        return First(2)
