from vortex import *


weights = open("weights.txt").read()  # <- open("weights.txt")


class Example(vFlow):
    def forward_indexer(q, c):
        return First(2)
