# target: Quest
from vortex import *


class Quest2(vFlow):  # <- file
    def forward_indexer(q, c):
        return First(2)
