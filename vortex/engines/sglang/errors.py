"""Everything the SGLang backend refuses: a stable code, one sentence, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """code: VTX6 and two digits; message and remedy: format strings over the facts of one refusal."""

    code: str
    message: str
    remedy: str


def _refusals(*rows: tuple[int, str, str, str]) -> dict[str, Refusal]:
    return {slug: Refusal(f"VTX{600 + number}", message, remedy) for number, slug, message, remedy in rows}


REFUSALS = _refusals(
    (1, "no-algorithm", "The attention backend vortex was chosen, and no algorithm.",
     "Set VORTEX_ALGORITHM=algo.py, or start with `vortex serve algo.py --model-path …`."),
    (2, "two-algorithms", "The environment names {environment}, --json-model-override-args {override}.",
     "Give the algorithm in one of the two."),
    (3, "bad-setting", "{error}.", "Write it as docs/sglang.md shows."),
    (4, "bad-override", "--json-model-override-args: \"vortex\" {error}.",
     "Write {{\"vortex\": {{\"algorithm\": \"algo.py\", \"set\": {{\"budget\": 128}}}}}}."),
    (5, "bad-algorithm", "{target} cannot be served:\n{findings}",
     "See `vortex check {target}`; hyper-parameters come from {where}."),
)  # fmt: skip


class StartError(RuntimeError):
    """Why the server does not start; `code` is stable."""

    def __init__(self, slug: str, **facts: object) -> None:
        refusal = REFUSALS[slug]
        self.slug, self.code = slug, refusal.code
        super().__init__(
            f"{refusal.code}: {refusal.message.format(**facts)}\n  = {refusal.remedy.format(**facts)}"
        )
