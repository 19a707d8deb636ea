from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        for step in range(10**6):
            print("step", step)
        return First(2)
