"""docs/algorithms.md is what the files and the measurements say."""

import json

from docs.library import RESULTS, ROOT, algorithms_page

HELD = json.loads(RESULTS.read_text(encoding="utf-8"))
ROWS = HELD["algorithms"]


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8") == algorithms_page()


def test_every_algorithm_was_measured():
    files = {path.stem for path in (ROOT / "algorithms").glob("*.py")}
    assert set(ROWS) == files | {"oracle", "random"}


def test_no_method_finds_more_than_the_oracle_at_its_size():
    for name, row in ROWS.items():
        for context, shares in row.items():
            for share, held in shares.items():
                most = ROWS["oracle"][context][share]
                assert held["recall"] <= most["recall"] or held["attended"] > most["attended"], (
                    name,
                    context,
                    share,
                )
                assert 0 < held["recall"] <= 1
