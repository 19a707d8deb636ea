# set: buget=64
from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        return First(2)  # <- file
