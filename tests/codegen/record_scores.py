"""Records rows of block scores of the demo model over real text, for tests/codegen/test_select.py.

    python tests/codegen/record_scores.py

Writes scores.npy, float32 [6, 2047]: of layers 3, 15 and 27, KV head 1, at 4,096 tokens in blocks of 2, the mean over
the group of the products with the mean key of a block (as block_topk scores them), then the softmax of these.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from vortex.engines.transformers.model import load

LAYERS, HEAD, TOKENS, BLOCK = (3, 15, 27), 1, 4096, 2


class Capture:
    """A dense prefill that keeps block scores of some layers."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def attend(self, layer, q, k, v, scale):
        if layer in LAYERS:
            group = q.shape[1] // k.shape[1]
            newest = q[0, HEAD * group : (HEAD + 1) * group, -1].mean(0)
            blocks = k[0, HEAD, : (TOKENS - 1) // BLOCK * BLOCK].unflatten(0, (-1, BLOCK)).mean(1)
            self.rows.append(blocks @ newest)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)


def main() -> None:
    from pydoc_data.topics import topics

    model = load()
    tokens = model.encode("\n".join(topics[name] for name in sorted(topics)))[:TOKENS]
    capture = Capture()
    with torch.no_grad():
        model.model(
            input_ids=torch.tensor(tokens)[None], use_cache=False, logits_to_keep=1, vortex_step=capture
        )
    raw = torch.stack(capture.rows).float()
    rows = torch.cat([raw, (raw * model.heads.dim**-0.5).softmax(-1)])
    np.save(Path(__file__).with_name("scores.npy"), rows.numpy())


if __name__ == "__main__":
    main()
