"""`vortex run` of every shipped algorithm on the demo model: it decodes, and reads less than dense attention."""

import json
from pathlib import Path

import pytest

from vortex.cli.prompt import long_prompt

FOLDER = Path(__file__).parents[2] / "algorithms"
STEMS = sorted(path.stem for path in FOLDER.glob("*.py"))
CHARACTERS = 2400

SPARSE = {
    "a_shape": [],
    "dilated": [],
    "pyramidkv": [],
    "lightning_indexer": ["block_size=1", "budget=128"],
    "shadowkv": ["block_size=16", "budget=8", "landmarks=6", "outliers=3"],
}
"""What makes a short text sparse where it is not the usual 8 blocks of 16; [] for what brings its own budget."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded():
    from vortex.engines.transformers.model import load

    return load(None)


@pytest.mark.parametrize("stem", STEMS)
def test_it_decodes_sparsely_on_the_demo_model(vortex, monkeypatch, loaded, stem):
    monkeypatch.setattr("vortex.engines.transformers.model.load", lambda *args, **options: loaded)
    words = ["--prompt", long_prompt()[:CHARACTERS], "--max-new-tokens", 5]
    for setting in SPARSE.get(stem, ["block_size=16", "budget=8"]):
        words += ["--set", setting]
    result = vortex("run", FOLDER / f"{stem}.py", *words, "--recall-every", 2, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["prompt_tokens"] > 400 and len(said["tokens"]) == 5 and said["text"].strip()
    assert 0 < said["kv_share"] < 0.9
    assert 0 < said["recall"] <= 1
