from vortex import *


class Example:  # <- file
    def forward_indexer(q, c):
        return First(2)
