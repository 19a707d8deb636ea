"""Which algorithm a server decodes with: from the environment, or from the model's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vortex import settings as environment_settings
from vortex.dsl.assign import AssignmentError, assignments
from vortex.dsl.check import check
from vortex.dsl.diagnostics import render
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import split_target
from vortex.engines.sglang.errors import StartError

NAME = "vortex"
"""Of the attention backend, of the plugin, and of the key in a model's configuration."""

KEYS = ("algorithm", "set")


@dataclass(frozen=True)
class Settings:
    """An algorithm and its hyper-parameters.

    algorithm  the file, absolute
    flow       which of its classes, None where it has one
    values     hyper-parameters, `dense_layers`, `dense_below` and the rest; texts, or what JSON can say
    source     where they were given, for messages
    """

    algorithm: Path
    flow: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    source: str = "VORTEX_SET"

    @property
    def target(self) -> str:
        """`file.py` or `file.py:Name`."""
        return f"{self.algorithm}:{self.flow}" if self.flow else str(self.algorithm)

    def program(self, shape: Shape) -> Program:
        """The flow traced for a model of this shape, in a child process. Raises StartError for its errors."""
        traced = check(self.target, self.values, shape)
        if traced.program is None:
            findings = "\n".join(render(each) for each in traced.errors)
            raise StartError("bad-algorithm", target=self.target, findings=findings, where=self.source)
        return traced.program


def settings(config: Any = None, environment: Mapping[str, str] | None = None) -> Settings:
    """What was asked for.

    config       the model's `hf_config`; `--json-model-override-args '{"vortex": …}'` puts a dictionary there
    environment  by default the process's

    Raises StartError: nothing or two different things were asked for, or something cannot be read.
    """
    given = [each for each in (_from_environment(environment), _from_override(config)) if each is not None]
    if not given:
        raise StartError("no-algorithm")
    if len(given) == 2 and not _agree(*given):
        raise StartError("two-algorithms", environment=_shown(given[0]), override=_shown(given[1]))
    return given[-1]


def override(algorithm: str | os.PathLike[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """What `settings` reads again out of a model's configuration."""
    path, flow = split_target(os.fspath(algorithm))
    return {"algorithm": ":".join([os.path.abspath(path), *filter(None, [flow])]), "set": dict(values)}


def _from_environment(environment: Mapping[str, str] | None) -> Settings | None:
    try:
        found = environment_settings.settings(environment)
    except environment_settings.SettingError as error:
        raise StartError("bad-setting", error=error) from None
    if not found.algorithm:
        if found.values:
            raise StartError("bad-setting", error="VORTEX_SET is given without VORTEX_ALGORITHM")
        return None
    return _settings(found.algorithm, found.values, "VORTEX_SET")


def _from_override(config: Any) -> Settings | None:
    given = config.get(NAME) if isinstance(config, Mapping) else getattr(config, NAME, None)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise StartError("bad-override", error=f"is a dictionary, got {given!r}")
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise StartError("bad-override", error=f"has no key {unknown[0]!r}; there are {' and '.join(KEYS)}")
    algorithm, values = given.get("algorithm"), given.get("set", {})
    if not isinstance(algorithm, str) or not algorithm:
        raise StartError("bad-override", error=f'needs the path of a file as "algorithm", got {algorithm!r}')
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        try:
            values = assignments(values)
        except AssignmentError as error:
            raise StartError("bad-override", error=f'"set" {error}') from None
    if not isinstance(values, Mapping):
        raise StartError("bad-override", error=f'takes a dictionary as "set", got {values!r}')
    return _settings(algorithm, values, "--json-model-override-args")


def _settings(target: str, values: Mapping[str, Any], source: str) -> Settings:
    path, flow = split_target(target)
    if "\0" in path:
        raise StartError("bad-setting", error=f"{path!r} is no path")
    return Settings(Path(path).expanduser().absolute(), flow, dict(values), source)


def _agree(one: Settings, other: Settings) -> bool:
    def texts(each: Settings) -> dict[str, str]:
        return {key: str(value) for key, value in each.values.items()}

    return (one.algorithm, one.flow) == (other.algorithm, other.flow) and texts(one) == texts(other)


def _shown(each: Settings) -> str:
    return " ".join([each.target, *(f"{key}={value}" for key, value in each.values.items())])
