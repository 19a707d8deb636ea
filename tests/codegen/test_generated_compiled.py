"""Random programs over the whole language, compiled and interpreted, against the reference executor."""

import pytest

from tests.codegen.comparison import Comparison, Setup
from tests.generate import generate
from vortex.codegen.build import Options, build
from vortex.dsl.registry import OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

QUICK, ALL = range(25), range(25, 240)
UNWRITTEN = {"attn", "L2Norm"}
"""Public operators that leave no node of their own after the passes."""


def compare(seed: int) -> None:
    """Ragged requests of up to a dozen blocks, pages of one and two blocks; both kinds of summaries."""
    program = generate(seed).program
    block, per_page = program.policy.block_size, 1 + seed % 2
    setup = Setup(
        kv="fp16" if seed % 3 == 2 else "fp32", per_page=per_page, in_step=seed % 2 == 1, shortcut=seed % 4 != 0,
        strided=seed % 5 != 0, form=("split", "fused")[seed // 2 % 2], layers=1,
    )  # fmt: skip
    made = Comparison(program, [1, block * per_page + 1, 0, 12 * block + 3], setup, seed)
    made.run(2 if program.states else 1)
    assert made.excused <= made.compared / 4, (made.excused, made.compared)


@pytest.mark.parametrize("seed", QUICK)
def test_a_random_program(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL)
def test_another_random_program(seed):
    compare(seed)


def test_random_programs_use_the_whole_language():
    """Every operator, states, restricted blocks, parameters and shared heads occur among the programs compared."""
    used: set[str] = set()
    states = restricted = weights = shared = 0
    for seed in (*QUICK, *ALL):
        program = generate(seed).program
        nodes = (*program.cache.nodes, *program.indexer.nodes)
        used |= {node.op for node in nodes}
        states += bool(program.states)
        restricted += any(
            axis.subset is not None for node in program.indexer.nodes for axis in node.type.axes
        )
        weights += bool(program.weights)
        shared += bool(program.policy.share_heads)
    public = {name for name, op in OPERATORS.items() if op.public}
    assert public - used <= UNWRITTEN, public - used
    assert min(states, restricted, weights, shared) >= 10, (states, restricted, weights, shared)


def test_random_programs_build_for_every_kv_dtype():
    for seed in range(40, 60):
        for kv in ("bf16", "fp16", "fp32", "fp8"):
            assert build(generate(seed).program, Options(kv)).kernels
