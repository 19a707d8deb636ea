"""What generated modules look like: they parse, they are tidy, and their lines say which line they came from."""

import ast
import re
from pathlib import Path

import pytest

from vortex.codegen.build import FUNCTIONS_OF_KERNELS, Options, build
from vortex.codegen.templates import TEMPLATES, functions_used
from vortex.codegen.wrap import wrap
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file

ALGORITHMS = sorted(Path(__file__).parents[2].joinpath("algorithms").glob("*.py"))
LONGEST = 150
"""Characters of the longest generated line: its code has at most 120, its comment names a path."""


def kernels(path: Path, **options):
    program = trace_file(path, shape=Shape(12, 2, 80, 4)).program
    assert program is not None
    return program, build(program, Options(**options)).kernels


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_a_generated_module_parses_and_is_tidy(path):
    for each in kernels(path)[1]:
        tree = ast.parse(each.source)
        assert ast.get_docstring(tree), each.name
        lines = each.source.splitlines()
        assert each.source.isascii() and each.source.endswith("\n") and not each.source.endswith("\n\n")
        assert all(line == line.rstrip() and "\t" not in line for line in lines), each.name
        code = [line.partition("  #")[0] for line in lines]
        assert max(map(len, code)) <= LONGEST, max(code, key=len)
        assert not re.search(r"\n\n\n\n", each.source), each.name
        for name in (node.name for node in tree.body if isinstance(node, ast.FunctionDef)):
            assert re.search(rf"(?<!def ){name}\(", each.source) or name.startswith(
                ("map_", "row_", "plan_step", "summarise_", "scan_step", "mark_step", "fused_")
            ), f"{each.name} never calls {name}"


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_lines_say_where_they_came_from(path):
    """EDGE: `# algo.py:17` beside what that line became, and every line that is named exists."""
    program, made = kernels(path)
    written = len(path.read_text().splitlines())
    pattern = re.compile(rf"# .*{re.escape(path.name)}:(\d+)$")
    sources = [each.source for each in made if each.name != "plan"]
    found = [
        int(number) for source in sources for line in source.splitlines() for number in pattern.findall(line)
    ]
    computes = any(node.location and node.inputs for node in program.indexer.nodes)
    assert found or not computes
    assert all(1 <= number <= written for number in found)


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.name)
def test_no_template_is_over_200_lines(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 200
    assert all(line == line.rstrip() and len(line) <= 130 for line in lines)


def test_wrapping_a_statement_changes_no_meaning():
    long = "x" * 30
    statements = [
        f"v1 = tl.load({long} + f({long}) * {long} + ({long} & {long} | g({long}, (3,))[:, None]), mask={long}).to(t)",
        f"tl.store({long} + {long} * {long}, {long}, mask=({long})[:, None] & (({long} < 3) | ({long} > {long})))",
        f"v2 = {long} + {long} + {long} + {long}",
        f"v3 = tl.reshape({long}{long}{long}{long}, ({long},))",
        "v4 = 1",
    ]
    for statement in statements:
        wrapped = wrap(statement + "  # algo.py:17", 8)
        assert ast.dump(ast.parse(wrapped)) == ast.dump(ast.parse(statement))
        assert wrapped.splitlines()[0].endswith("  # algo.py:17")
    assert wrap("v4 = 1", 8) == "v4 = 1"
    assert all(len(line) <= 111 for line in wrap(statements[0], 8).splitlines())


def test_a_kernel_gets_the_functions_it_calls_and_those_they_call():
    source = functions_used(FUNCTIONS_OF_KERNELS, ["v1 = floor_divide(v0, 2)", "tl.exp(larger)"])
    names = [node.name for node in ast.parse(source).body]
    assert names == ["floor_divide", "remainder"]
    assert functions_used(FUNCTIONS_OF_KERNELS, ["v1 = tl.exp(v0)"]) == ""
