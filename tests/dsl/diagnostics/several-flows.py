from vortex import *


class One(vFlow):  # <- class One
    def forward_indexer(q, c):
        return First(2)


class Two(vFlow):
    def forward_indexer(q, c):
        return Last(2)
