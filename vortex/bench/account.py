"""The bytes that one decode step reads, and what sparsity of either kind can save at best.

A step of `batch` requests of n tokens each reads

    mlp        w * (gate, up and down projections)            once for the batch
    attention  w * (q, k, v and o projections)                once for the batch
    kv         batch * kappa * n, kappa = kv bytes of a token: K and V, all layers and KV heads
    entries    batch * epsilon * n, epsilon = bytes of the block entries per token, all layers and KV heads;
               0 for a dense step
    other      o * (output matrix + norms + biases + one embedding row per request)

with w, o and kv element sizes in bytes. "Projections" are mlp + attention. The output matrix is read whole
whether or not it is tied to the embedding. Activations and written K and V are left out: they are thousands
of times smaller. Every figure is an exact rational.

*KV sparsity* reads `kept(n)` tokens of the n: keep * n of a ratio, min(n, tokens) of a token budget, and the
entries on top; a row whose budget covers it is dense and reads no entries. *Projection sparsity* reads
`u` of the projections, or of the MLP alone. Each request keeps its own channels and the batch reads their
union: u = keep for one request, and 1 - (1 - keep)**batch for requests that choose independently. Requests
that agree read less (`union` takes a measured u).

The ideal speed-up is dense bytes over sparse bytes. The crossover n* is where both save the same bytes:

    (1 - u) * W = batch * (kappa * (n - kept(n)) - epsilon * n)
    ratio:    n* = (1 - u) * W / batch / (kappa * (1 - keep) - epsilon)
    budget:   n* = ((1 - u) * W / batch + kappa * tokens) / (kappa - epsilon)

with W the bytes of the projections that are sparse. Below n* projection sparsity saves more, above it KV
sparsity. `other` cancels. Measured kernels turn bytes into time: each kind adds a fixed cost c per layer to
its saved bytes over a bandwidth b, so that the time saved is equal where (1 - u) * W above is replaced by

    (1 - u) * W + layers * (c_kv - c_projection) * b
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from vortex.bench.models import Model


class AccountError(ValueError):
    """A figure the account cannot take; the message says which and what it should be."""


@dataclass(frozen=True)
class Bits:
    """Element sizes in bits, rationals: 4-bit weights with a 16-bit scale per 32 have 4.5.

    weight: projections; kv: K and V; other: output matrix, norms, biases, embedding.
    """

    weight: Fraction = Fraction(16)
    kv: Fraction = Fraction(16)
    other: Fraction = Fraction(16)

    def __post_init__(self) -> None:
        if min(self.weight, self.kv, self.other) <= 0:
            raise AccountError(f"element sizes are positive numbers of bits, got {self}")


@dataclass(frozen=True)
class KVSparsity:
    """Attention that reads part of the cache: exactly one of `keep` (0 to 1) and `tokens` (per KV head).

    entries: bytes read per token of the context, per KV head and layer, to choose the tokens.
    """

    keep: Fraction | None = None
    tokens: int | None = None
    entries: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.tokens is None):
            raise AccountError("KV sparsity is a ratio (keep) or a budget (tokens): give one of the two")
        if self.keep is not None and not 0 <= self.keep <= 1:
            raise AccountError(f"the ratio of KV kept lies in 0 to 1, got {float(self.keep)}")
        if self.tokens is not None and self.tokens < 1:
            raise AccountError(f"a budget of tokens is positive, got {self.tokens}")
        if self.entries < 0:
            raise AccountError("the bytes of the entries are not negative")

    def kept(self, context: int) -> Fraction:
        """Tokens of K and V read of a context of so many."""
        if self.tokens is not None:
            return Fraction(min(self.tokens, context))
        return (self.keep or 0) * Fraction(context)


@dataclass(frozen=True)
class ProjectionSparsity:
    """Projections of which a token reads only some channels.

    keep: share of the channels one request reads; attention: whether q, k, v and o are sparse as well, or
    the MLP alone; union: measured share that a batch reads together, if known.
    """

    keep: Fraction
    attention: bool = True
    union: Fraction | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise AccountError(f"the ratio of projections kept lies in 0 to 1, got {float(self.keep)}")
        if self.union is not None and not self.keep <= self.union <= 1:
            raise AccountError(f"the union of channels lies in keep to 1, got {float(self.union)}")

    def read(self, batch: int) -> Fraction:
        """Share of the channels that a batch reads."""
        if batch == 1:
            return self.keep
        return 1 - (1 - self.keep) ** batch if self.union is None else self.union


@dataclass(frozen=True)
class Costs:
    """What was measured: bandwidth in bytes/s; us per layer that each kind of sparsity adds to its bytes."""

    bandwidth: Fraction
    kv_us: Fraction = Fraction(0)
    projection_us: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.kv_us < 0 or self.projection_us < 0:
            raise AccountError("the bandwidth is positive and costs are not negative")

    def in_bytes(self, cost_us: Fraction, layers: int) -> Fraction:
        """Bytes that could be read in the time that a cost per layer takes over all layers."""
        return layers * cost_us * self.bandwidth / 1_000_000


@dataclass(frozen=True)
class Reads:
    """Bytes read by one step."""

    mlp: Fraction
    attention: Fraction
    kv: Fraction
    entries: Fraction
    other: Fraction

    @property
    def total(self) -> Fraction:
        return self.mlp + self.attention + self.kv + self.entries + self.other

    @property
    def kv_share(self) -> Fraction:
        return self.kv / self.total

    def seconds(self, bandwidth: Fraction) -> Fraction:
        """The byte bound: the least time at a bandwidth in bytes/s."""
        return self.total / bandwidth


@dataclass(frozen=True)
class Step:
    """A model at element sizes and a batch: what `reads` and `crossover` are asked about."""

    model: Model
    bits: Bits = Bits()
    batch: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise AccountError(f"a batch holds at least one request, got {self.batch}")

    @property
    def kappa(self) -> Fraction:
        """Bytes of K and V of one token."""
        return self.model.kv_elements * self.bits.kv / 8

    def epsilon(self, kv: KVSparsity) -> Fraction:
        """Bytes of entries of one token."""
        return kv.entries * self.model.kv_heads * self.model.layers

    def reads(
        self, context: int, kv: KVSparsity | None = None, projection: ProjectionSparsity | None = None
    ) -> Reads:
        """Bytes of a step at `context` tokens, dense where no sparsity is given."""
        if context < 1:
            raise AccountError(f"a context holds at least one token, got {context}")
        model, weight, other = self.model, self.bits.weight / 8, self.bits.other / 8
        share = projection.read(self.batch) if projection else Fraction(1)
        kept = kv.kept(context) if kv else Fraction(context)
        chosen = kv is not None and kept < context
        rest = model.output_weights + model.vectors + self.batch * model.hidden
        return Reads(
            mlp=weight * model.mlp_weights * share,
            attention=weight
            * model.attention_weights
            * (share if projection and projection.attention else 1),
            kv=self.batch * self.kappa * kept,
            entries=self.batch * self.epsilon(kv) * context if kv and chosen else Fraction(0),
            other=other * rest,
        )

    def saved_by(self, projection: ProjectionSparsity) -> Fraction:
        """Bytes that projection sparsity saves, whatever the context."""
        weights = self.model.mlp_weights + (self.model.attention_weights if projection.attention else 0)
        return self.bits.weight / 8 * weights * (1 - projection.read(self.batch))

    def crossover(
        self, kv: KVSparsity, projection: ProjectionSparsity, costs: Costs | None = None
    ) -> Fraction | None:
        """n*: the context from which KV sparsity saves more than projection sparsity.

        Bytes, or time where `costs` are given. 0: at every context; None: at no context.
        """
        saved = self.saved_by(projection)
        if costs:
            saved += costs.in_bytes(costs.kv_us - costs.projection_us, self.model.layers)
        return self._context_saving(kv, saved)

    def pays_from(self, kv: KVSparsity, costs: Costs) -> Fraction | None:
        """The context from which KV sparsity is faster than dense attention; None: at no context."""
        return self._context_saving(kv, costs.in_bytes(costs.kv_us, self.model.layers))

    def _context_saving(self, kv: KVSparsity, saved: Fraction) -> Fraction | None:
        slope = self.kappa - self.epsilon(kv)
        if kv.tokens is None:
            slope -= self.kappa * (kv.keep or 0)
        if slope <= 0:
            return None
        budget = kv.tokens or 0
        found = (saved / self.batch + self.kappa * budget) / slope
        # Up to the budget attention is dense and costs nothing: ahead there means ahead everywhere.
        return found if found >= budget else Fraction(0)


def entry_bytes(block_size: int, widths: Iterable[int], bits: Fraction = Fraction(16)) -> Fraction:
    """Bytes of entries per token, per KV head and layer: `widths` elements of each entry of a block."""
    widths = tuple(widths)
    if block_size < 1 or min(widths, default=1) < 1 or bits <= 0:
        raise AccountError("block size, entry widths and entry bits are positive")
    return sum(widths) * bits / 8 / block_size


def nearest(value: Fraction) -> int:
    """The integer nearest to a figure, halves up: how tokens and bytes are printed."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
