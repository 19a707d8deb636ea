"""Sizes of selections are checked while tracing, not when a request arrives."""

import pytest

from vortex.dsl.load import trace_file

FLOW = """
from vortex import *


class Sized(vFlow):
    def forward_indexer(q, c):
        return topK(Positions().index, k={k})
"""


@pytest.mark.parametrize(
    ("k", "code"), [("2**70", "VTX107"), ("'blocks ** 9'", "VTX107"), ("-1", "VTX420"), ("0.5", "VTX420")]
)
def test_a_size_no_kernel_can_hold_is_refused_at_its_line(tmp_path, k, code):
    file = tmp_path / "sized.py"
    file.write_text(FLOW.format(k=k))
    (finding,) = trace_file(file).findings
    assert (finding.code, finding.line) == (code, 7)
