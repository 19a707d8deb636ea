"""Options that several commands share: `--set key=value`, `--model`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import typer

from vortex.cli.console import ERRORS, USAGE
from vortex.dsl.assign import AssignmentError, assignments
from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.check import Report
from vortex.dsl.diagnostics import Diagnostic
from vortex.dsl.ir import Shape

SetOption = typer.Option(
    "--set", metavar="KEY=VALUE", help="Set a hyper-parameter, e.g. --set budget=64 block_size=32."
)
FILE_HELP = "An algorithm file, file.py:Name, or a name that `vortex algorithms` lists."
MODEL_HELP = "Trace for this model: a name, a model's folder or its config.json."
CODES = {CATALOGUE[slug].code: key for slug, key in
         (("unknown-key", None), ("block-size", "block_size"), ("budget", "budget"),
          ("layers", "dense_layers"), ("bad-value", None))}  # fmt: skip
"""Findings that may be about a setting: code -> the key, None where the message begins with it."""


def overrides(values: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a dictionary. Raises typer.BadParameter."""
    try:
        return assignments(values)
    except AssignmentError as error:
        raise typer.BadParameter(f"--set {error}") from None


def shape_of(model: str | None) -> Shape:
    """The sizes that matter to a flow; without a model the stated default. Raises typer.BadParameter."""
    if model is None:
        return Shape()
    path = Path(model)
    if path.is_dir() or path.suffix == ".json":
        return _shape_in(path / "config.json" if path.is_dir() else path)
    from vortex.bench.models import ModelError, load_model

    try:
        found = load_model(model)
    except ModelError as error:
        raise typer.BadParameter(str(error)) from None
    return Shape(found.query_heads, found.kv_heads, found.head_dim, found.layers)


def _shape_in(path: Path) -> Shape:
    """The sizes in a model's config.json."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        shape = Shape(heads, config.get("num_key_value_heads") or heads, dim, layers)
        whole = all(type(each) is int and each > 0 for each in astuple(shape))
        if not whole or shape.query_heads % shape.kv_heads:
            raise ValueError(f"its sizes make no model: {shape}")
    except OSError as error:
        raise typer.BadParameter(f"--model {path}: {error.strerror or error}") from None
    except KeyError as error:
        raise typer.BadParameter(f"--model {path}: it has no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"--model {path} is no model's config.json: {error}") from None
    return shape


def about_setting(finding: Diagnostic, given: Mapping[str, Any]) -> bool:
    """Whether a finding is about what --set gave, and not about the file."""
    if finding.code not in CODES:
        return False
    if finding.code == CATALOGUE["unknown-key"].code:
        return True
    key = CODES[finding.code]
    return any(key == name or (key is None and finding.message.startswith(f"{name} = ")) for name in given)


def blamed(report: Report, given: Mapping[str, Any]) -> Report:
    """The report without places in the file for what came from the command line."""
    findings = tuple(
        replace(each, line=0, column=0, end_line=0, end_column=0) if about_setting(each, given) else each
        for each in report.findings
    )
    return replace(report, findings=findings)


def status(reports: Iterable[Report], given: Mapping[str, Any]) -> int:
    """0, 1 where a file has errors of its own, 2 where only settings are wrong."""
    errors = [finding for report in reports for finding in report.errors]
    if not errors:
        return 0
    return USAGE if all(about_setting(each, given) for each in errors) else ERRORS
