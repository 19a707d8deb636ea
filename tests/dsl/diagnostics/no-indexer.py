from vortex import *


class Example(vFlow):  # <- class Example
    def forward_cache(c):
        c["mean"] = Mean(c["k"])
