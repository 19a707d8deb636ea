from vortex import TopK, vFlow  # <- from vortex import TopK, vFlow


class Example(vFlow):
    def forward_indexer(q, c):
        return TopK(Max(q))
