"""Kernels that overlap the end of the one before them wait for it where no compiler can load ahead of the wait.

Triton 3.6 loads for the first turn of a loop before it enters the loop, later releases do not: a wait inside a loop
is a race that only some versions show, so the source is judged and not what one version makes of it.
"""

import ast

import pytest

from tests.codegen.test_compiled import ALGORITHMS
from vortex.codegen.build import Options, build
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file

WAIT = "wait_for_kernel"


def named(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def calls(root: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(root) if isinstance(node, ast.Call)]


def may_wait(call: ast.Call, waiting: dict[str, ast.FunctionDef]) -> bool:
    """Whether this call can reach a wait: a function's WAIT that is False leaves it out."""
    if named(call) == WAIT:
        return True
    function = waiting.get(named(call))
    if function is None:
        return False
    names = [argument.arg for argument in function.args.args]
    told = call.args[names.index("WAIT")] if "WAIT" in names else None
    return not (isinstance(told, ast.Constant) and told.value is False)


def waits(source: str) -> tuple[int, list[int]]:
    """How many functions of a module wait, and the lines of waits that a loop repeats."""
    module = ast.parse(source)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    waiting = {each.name: each for each in functions if WAIT in map(named, calls(each))}
    loops = [node for node in ast.walk(module) if isinstance(node, (ast.For, ast.While))]
    return len(waiting), [call.lineno for loop in loops for call in calls(loop) if may_wait(call, waiting)]


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_no_kernel_waits_inside_a_loop(path):
    program = trace_file(str(path), {}, Shape(8, 2, 64, 4)).program
    built = build(program, Options("bf16"))
    form = built.form(rows=128, blocks=60)
    fused = [built.fused(60)] if form is not None and form.fused else []
    for source in (*built.kernels, *fused):
        count, repeated = waits(source.source)
        assert not repeated, f"{source.name}: lines {repeated}"
        assert count or "PDL" not in source.source, f"{source.name} is told of overlap and never waits"


def leaves(source: str) -> list[int]:
    """Lines of waits that no thread block may reach: those under a condition which does not hold for the first."""
    module = ast.parse(source)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    waiting = {each.name: each for each in functions if WAIT in map(named, calls(each))}
    found = []
    for branch in (node for node in ast.walk(module) if isinstance(node, ast.If)):
        constant = isinstance(branch.test, ast.Name) and branch.test.id.isupper()
        waits = [
            call.lineno
            for each in branch.body + branch.orelse
            for call in calls(each)
            if may_wait(call, waiting)
        ]
        found += [] if constant or "== 0)" in ast.unparse(branch.test).partition(" | ")[0] else waits
    return found


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_the_first_thread_block_waits_whatever_there_is(path):
    """A kernel that has ended tells the next one that the kernel before it has: one thread block waited for that."""
    program = trace_file(str(path), {}, Shape(8, 2, 64, 4)).program
    for source in build(program, Options("bf16")).kernels:
        assert not leaves(source.source), source.name


@pytest.mark.parametrize(
    ("condition", "found"), [("PDL", 0), ("(start == 0) | (start < finished)", 0), ("start < finished", 1)]
)
def test_a_wait_that_may_be_left_out_is_seen(condition, found):
    source = f"def kernel(start, finished, PDL):\n    if {condition}:\n        wait_for_kernel(True)\n"
    assert len(leaves(source)) == found


LOOP = """
def {name}(PDL):
    wait_for_kernel({argument})

def kernel(PDL):
    for item in range(4):
        {call}
"""


@pytest.mark.parametrize(
    ("call", "repeated"),
    [("wait_for_kernel(PDL)", 1), ("chunk(PDL)", 1), ("chunk(False)", 0), ("other(PDL)", 0)],
)
def test_a_wait_in_a_loop_is_seen(call, repeated):
    source = LOOP.format(name="chunk", argument="WAIT", call=call).replace("chunk(PDL):", "chunk(WAIT):")
    assert len(waits(source)[1]) == repeated
