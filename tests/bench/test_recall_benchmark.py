"""The benchmark of recall takes whatever names an algorithm; measured here with a tiny model and short passages."""

from pathlib import Path

import pytest

from benchmarks import recall
from tests.tiny import word_model
from vortex.dsl.target import folder
from vortex.engines.transformers.model import load


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(word_model(tmp_path_factory.mktemp("model"), context=512))


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"CONTEXTS": (256,), "LAYERS": (0, 1), "PASSAGES": 1}.items():
        monkeypatch.setattr(recall, name, value)
    monkeypatch.setattr(recall.Selector, "summaries", {})


@pytest.fixture
def texts(model):
    return recall.passages(model)


def test_a_copy_of_a_shipped_file_has_the_recall_of_its_name(model, texts):
    Path("mine.py").write_text((folder() / "quest.py").read_text(encoding="utf-8"), encoding="utf-8")
    shipped, own = (recall.measure(name, model, texts, 256, 0.5) for name in ("quest", "mine.py"))
    assert shipped == own and 0 < own["recall"] < 1


def test_two_flows_of_a_file_have_entries_of_their_own(model, texts):
    flow = (folder() / "block_topk.py").read_text(encoding="utf-8")
    second = (
        flow[flow.index("class ") :].replace("class BlockTopK", "class Last").replace("Mean(c", "-Mean(c")
    )
    Path("two.py").write_text(f"{flow}\n\n{second}", encoding="utf-8")
    first, last = (recall.measure(f"two.py:{name}", model, texts, 256, 0.3) for name in ("BlockTopK", "Last"))
    assert first == recall.measure("block_topk", model, texts, 256, 0.3)
    assert last["recall"] < first["recall"]


def test_only_shipped_files_have_their_numbers_of_blocks_scaled():
    Path("moba.py").write_text("", encoding="utf-8")
    assert (
        recall.scaled("moba", 8, 16)
        == recall.scaled(str(folder() / "moba.py"), 8, 16)
        == {"budget": 8, "top": 8}
    )
    assert recall.scaled("moba.py", 8, 16) == {"budget": 8}


def test_a_file_with_errors_ends_it_with_the_findings(model):
    with pytest.raises(SystemExit, match=r"nowhere\.py: error VTX005"):
        recall.trace("nowhere.py", model, {})
