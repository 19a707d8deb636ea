from vortex import *


class Example(vFlow):
    def __init__(self):  # <- def __init__
        self.top = 8

    def forward_indexer(q, c):
        return First(8)
