"""Without a GPU the kernels of this folder run in Triton's interpreter, in this process."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
