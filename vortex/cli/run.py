"""`vortex run FILE`: decodes real text with a model on this machine, and says what it read and kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vortex.cli.console import coloured, fail, printable
from vortex.cli.prompt import long_prompt
from vortex.cli.report import program_of
from vortex.cli.settings import FILE_HELP, SetOption, overrides, shape_of
from vortex.dsl.ir import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vortex.engines.transformers.engine import Engine, Output

SCHEMA_VERSION = 1
DEMO = "SmolLM2-135M-Instruct"
TAIL = 200
"""Characters of the prompt that are shown before its continuation."""


@dataclass(frozen=True)
class Comparison:
    """The same tokens fed to dense attention.

    tokens_per_s  of Transformers alone, dense, on this machine
    agreement     part of the steps in which both would choose the same token
    kl            per step, KL(dense || sparse) in nats
    """

    tokens_per_s: float
    agreement: float | None
    kl: tuple[float, ...] = field(default=())

    @property
    def mean_kl(self) -> float | None:
        return sum(self.kl) / len(self.kl) if self.kl else None


def run_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)],
    model: Annotated[
        Path | None, typer.Option(help=f"A model's folder; without it {DEMO}.", metavar="DIR")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the text to continue.")] = None,
    device: Annotated[
        str, typer.Option(help="Where model and algorithm run: cpu, or cuda with compiled kernels.")
    ] = "cpu",
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    settings: Annotated[list[str] | None, SetOption] = None,
    compare_dense: Annotated[
        bool, typer.Option("--compare-dense", help="Run dense attention on the same tokens as well.")
    ] = False,
    recall_every: Annotated[
        int, typer.Option(min=0, help="Measure recall every so many steps; 0: never.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Continue a text with a model whose decoding attends what the algorithm selects.

    Without a prompt, a passage of Python's own manual is continued, about 1,800 tokens long.
    """
    given = overrides(settings or ())
    text = _prompt(prompt, prompt_file)
    program = program_of(file, given, shape_of(str(model) if model else DEMO), as_json)
    with _problems():
        engine, tokens = _engine(program, model, device, text, chat, max_new_tokens)
        if not tokens:
            raise ValueError("the prompt is empty: give at least one word")
        if not as_json:
            typer.echo(_headline(program, model, len(tokens)), err=True)
            typer.echo(f"\n… {printable(text[-TAIL:].partition(' ')[2])}", err=True, nl=False)
        out = engine.generate(
            [tokens], max_new_tokens, recall_every=recall_every, on_token=None if as_json else _stream
        )
        compared = _compare(engine, tokens, out) if compare_dense else None
    if as_json:
        typer.echo(json.dumps(_document(program, model, given, out, compared), indent=2))
    else:
        typer.echo("\n")
        for name, value in _figures(out, compared):
            typer.echo(f"{name:22}{value}")


def _prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise typer.BadParameter("give --prompt or --prompt-file, not both")
    if prompt is not None:
        try:
            return os.fsencode(prompt).decode("utf-8")  # whatever the locale took its bytes for
        except UnicodeError:
            raise typer.BadParameter("--prompt is no text in UTF-8") from None
    if file is None:
        return long_prompt()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--prompt-file {file}: {error}") from None


@contextmanager
def _problems() -> Iterator[None]:
    """What may be wrong with a model, a prompt or the installation, as one line."""
    try:
        yield
    except ImportError as error:
        fail(f"{error.name or error} is not installed: run `pip install 'vortex-attention[demo]'`")
    except (ValueError, RuntimeError, OSError) as error:
        # The engine's own errors say what to do; anything else is a fault of ours and keeps its traceback.
        if not type(error).__module__.startswith("vortex.") and type(error) is not ValueError:
            raise
        fail(str(error))


def _engine(
    program: Program, model: Path | None, device: str, text: str, chat: bool, new_tokens: int
) -> tuple[Engine, list[int]]:
    """The engine with its model, and the prompt's tokens."""
    with _waiting("Loading the model") as say:
        from vortex.engines.transformers.engine import Engine
        from vortex.engines.transformers.model import load

        loaded = load(model, device=device, progress=say)
        tokens = loaded.encode(text, chat)
        room = len(tokens) + new_tokens + 2 * program.policy.block_size
        return Engine(loaded, program, pool_tokens=room, max_requests=1), tokens


@contextmanager
def _waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr that something takes long: a spinner with the time on a terminal, lines elsewhere."""
    if not coloured(sys.stderr):
        yield lambda line: typer.echo(line, err=True)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what)
        yield lambda line: progress.update(task, description=line)


def _headline(program: Program, model: Path | None, tokens: int) -> str:
    name = model.resolve().name if model else DEMO
    blocks = -(-tokens // program.policy.block_size)
    return f"{program.name} on {name}: {tokens} tokens of prompt, {blocks} blocks, budget {program.policy.budget}"


def _stream(request: int, token: int, text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def _compare(engine: Engine, prompt: list[int], out: Output) -> Comparison:
    from vortex.engines.transformers.compare import compare_dense, transformers_decode

    tokens = out.generations[0].tokens
    found = compare_dense(engine, prompt, tokens)
    _, rate = transformers_decode(engine.loaded, prompt, max(len(tokens), 2))
    return Comparison(rate, found.agreement, found.kl)


def _figures(out: Output, compared: Comparison | None) -> Iterator[tuple[str, str]]:
    """What is printed after the text: name and value."""
    rate = out.tokens_per_s
    yield "tokens/s", "nothing was decoded" if rate is None else f"{rate:.1f} ({out.decoded} decoded tokens)"
    yield "KV bytes read", f"{out.counters.kv_share:.1%} of dense"
    if out.recall is not None:
        yield "attention mass kept", f"{out.recall:.1%} (mean over {len(out.recalls)} sampled steps)"
    if compared is not None:
        yield "dense tokens/s", f"{compared.tokens_per_s:.1f} (Transformers)"
    if compared is not None and compared.agreement is not None:
        yield "token agreement", f"{compared.agreement:.1%}"
        yield "KL a step", f"{compared.mean_kl:.4f} nats (mean), {max(compared.kl):.4f} (largest)"


def _document(
    program: Program, model: Path | None, given: Mapping[str, str], out: Output, compared: Comparison | None
) -> dict[str, Any]:
    result = out.generations[0]
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "flow": program.name,
        "file": program.file,
        "set": dict(given),
        "model": str(model) if model else DEMO,
        "prompt_tokens": len(result.prompt),
        "tokens": result.tokens,
        "text": result.text,
        "finish": result.finish,
        "prefill_s": out.prefill_s,
        "decode_s": out.decode_s,
        "tokens_per_s": out.tokens_per_s,
        "kv_share": out.counters.kv_share,
        "recall": out.recall,
        "recalls": [{"step": each.step, "mean": each.mean} for each in out.recalls],
    }
    if compared is not None:
        document["dense"] = {
            "tokens_per_s": compared.tokens_per_s,
            "agreement": compared.agreement,
            "mean_kl": compared.mean_kl,
            "kl": list(compared.kl),
        }
    return document
