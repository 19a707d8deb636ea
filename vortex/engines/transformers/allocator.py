"""Which pages of the pool belong to whom: reference counts, shared prefixes, eviction, generations.

Host bookkeeping alone, no tensor. Page 0 is never given out: it is the dummy page of padded graph slots.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

ROOT = 0  # the generation that stands for the empty prefix


class PoolFull(RuntimeError):
    """The pool holds no room for a request; nothing was taken."""


@dataclass
class PageRun:
    """The pages of one request, in order.

    pages   pool pages, the first `shared` of them found in the prefix cache
    cached  tokens whose K and V are already there: shared * page_size
    """

    pages: list[int]
    shared: int
    cached: int
    open: bool = field(default=True, repr=False)


class PageAllocator:
    """Hands out pages of a pool and remembers full pages of prompts for later requests.

    A page is *in use* (count above 0), *cached* (count 0, found by its tokens until it is needed elsewhere,
    least recently used first) or *free*. Each time a page gets new contents it gets a new generation,
    unique in the life of the allocator. A prefix is looked up page by page under the key (generation of
    the page before, tokens of this page): exact, no hash can collide, and a key whose parent was evicted
    is never found again.

    pages      pages of the pool, the dummy page 0 included
    page_size  tokens of a page
    block_size tokens of a block, a divisor of page_size
    """

    def __init__(self, pages: int, page_size: int, block_size: int) -> None:
        if page_size % block_size:
            raise ValueError(f"page_size: {page_size} is no multiple of block_size {block_size}")
        if pages < 2:
            raise ValueError(f"pool: page 0 is a dummy, so at least 2 pages are needed, got {pages}")
        self.page_size = page_size
        self.blocks_per_page = page_size // block_size
        self._counts = [0] * pages
        self._generations = np.full(pages, -1, dtype=np.int64)
        self._next_generation = ROOT + 1
        self._free: deque[int] = deque(range(1, pages))
        self._cached: OrderedDict[int, None] = OrderedDict()  # pages with count 0, oldest use first
        self._page_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key_of: dict[int, tuple[int, tuple[int, ...]]] = {}
        # The generation of its page for which a block's entries were computed: they are valid while equal.
        self._summarised = np.full(pages * self.blocks_per_page, -2, dtype=np.int64)

    @property
    def available(self) -> int:
        """Pages that a new request could get: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def capacity(self) -> int:
        """Pages of the pool without the dummy page."""
        return len(self._counts) - 1

    def generation(self, page: int) -> int:
        """Changes whenever the page gets new contents; -1: never used."""
        return int(self._generations[page])

    def acquire(self, tokens: Sequence[int], length: int) -> PageRun:
        """Pages for a request whose prompt is `tokens` and which may grow to `length` tokens.

        Leading full pages that a former prompt left in the pool are shared, always short of the last
        token: its query must run. Raises PoolFull, with nothing taken.
        """
        length = max(length, len(tokens))
        shared = self._match(tokens)
        wanted = -(-length // self.page_size) - len(shared)
        available = self.available - sum(1 for page in shared if self._counts[page] == 0)
        if wanted > available:
            raise PoolFull(
                f"KV pool full: {length} tokens need {wanted} more pages of {self.page_size} tokens "
                f"({len(shared)} are shared), {available} of {self.capacity} are available; "
                "give pool_tokens a larger value, or fewer or shorter requests"
            )
        for page in shared:
            self._cached.pop(page, None)
            self._counts[page] += 1
        fresh = [self._take() for _ in range(wanted)]
        return PageRun(shared + fresh, len(shared), len(shared) * self.page_size)

    def remember(self, run: PageRun, tokens: Sequence[int]) -> None:
        """Lets later requests find the full pages of a prompt whose K and V are written in every layer."""
        parent = ROOT
        for number in range(len(tokens) // self.page_size):
            key = (parent, self._tokens(tokens, number))
            page = self._page_of.setdefault(key, run.pages[number])
            self._key_of.setdefault(page, key)
            parent = self.generation(page)

    def release(self, run: PageRun) -> None:
        """Gives a request's pages back; what is remembered stays cached until the room is needed."""
        if not run.open:
            raise ValueError("the pages of this request were already given back")
        run.open = False
        # Deepest first, so that a prefix outlives what follows it.
        for page in reversed(run.pages):
            self._counts[page] -= 1
            if self._counts[page] == 0:
                if page in self._key_of:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def forget(self) -> None:
        """Empties the prefix cache; requests that run keep their pages."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._page_of.clear()
        self._key_of.clear()

    def stale_blocks(self, run: PageRun, finished: int) -> np.ndarray:
        """Pool block ids, int64, of the first `finished` blocks whose entries are not valid."""
        ids = self.pool_blocks(run.pages, finished)
        return ids[self._summarised[ids] != self._generations[ids // self.blocks_per_page]]

    def mark_summarised(self, block_ids: np.ndarray) -> None:
        """The entries of these pool blocks now belong to the present contents of their pages."""
        self._summarised[block_ids] = self._generations[block_ids // self.blocks_per_page]

    def pool_blocks(self, pages: Sequence[int], count: int) -> np.ndarray:
        """Pool block ids of the first `count` blocks of these pages, int64 [count]."""
        needed = -(-count // self.blocks_per_page)
        first = np.array(pages[:needed], dtype=np.int64) * self.blocks_per_page
        return (first[:, None] + np.arange(self.blocks_per_page)).reshape(-1)[:count]

    def _tokens(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(tokens[number * self.page_size : (number + 1) * self.page_size])

    def _match(self, tokens: Sequence[int]) -> list[int]:
        found: list[int] = []
        parent = ROOT
        for number in range(max(len(tokens) - 1, 0) // self.page_size):
            page = self._page_of.get((parent, self._tokens(tokens, number)))
            if page is None:
                break
            found.append(page)
            parent = self.generation(page)
        return found

    def _take(self) -> int:
        if self._free:
            page = self._free.popleft()
        else:
            page, _ = self._cached.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._counts[page] = 1
        self._generations[page] = self._next_generation
        self._next_generation += 1
        return page
