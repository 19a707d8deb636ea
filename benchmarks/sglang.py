"""Decode throughput of SGLang with Vortex against SGLang's FlashInfer backend, in one run.

Both sides are what SGLang starts: decode graphs, overlap scheduler and radix cache on. Rates are those of the
scheduler's log while all requests decode; times of tokens are a client's. Random weights of a real scale.

Most of a start is imports. So the servers of a wave (--together) start at once, stop before they use the GPU, and
then run one after the other, each alone: those that wait look for a file now and then; what they use of the CPU is
reported.

    python benchmarks/sglang.py --list
    python benchmarks/sglang.py --out DIR --only 'holds/*'
    python benchmarks/sglang.py --out DIR --only 'holds/*=240' --only 'long-prompts/Qwen3-8B/*' --seconds 540
    python benchmarks/sglang.py --out DIR --missing --only "*/16x16384*"
    python benchmarks/sglang.py --out DIR --report

Results are written after each server (DIR/sglang.json, DIR/sglang.md, DIR/log/), and added to what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

# In place of this folder, in which `import sglang` would find this very file.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.serving.run import main  # noqa: E402

if __name__ == "__main__":
    main(__doc__)
