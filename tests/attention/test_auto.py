"""The choice of a provider: what is kept, what is said, and when nothing is measured."""

import json

import pytest
import torch
from attention_cases import check, make

from vortex.attention import auto
from vortex.attention.auto import AutoProvider, Choice, read
from vortex.attention.flashinfer import FlashInferProvider
from vortex.attention.provider import Features, Unsupported
from vortex.attention.reference import ReferenceProvider


def test_a_cpu_gets_the_reference_and_the_reason():
    case = make([40, 9])
    planned = AutoProvider().plan(case.shape, Features())
    assert planned.reason == "reference: the only one for this shape on cpu"
    check(case, case.run(AutoProvider()))


def test_the_reason_prints_every_time_measured():
    choice = Choice("b", {"a": 42.7, "b": 33.25}, {}, "a GPU")
    assert choice.reason == "b: fastest measured on a GPU (b 33.2 us, a 42.7 us)"


def test_no_able_candidate_is_refused_with_each_reason():
    case = make([40])
    with pytest.raises(Unsupported, match=r"only: .*'flashinfer' has no support for attention sinks"):
        AutoProvider({"only": FlashInferProvider()}).plan(case.shape, Features(sinks=True))


def test_a_kept_choice_is_used_unless_it_cannot_run(tmp_path):
    path = tmp_path / "choice.json"
    assert read(path, ["a"]) is None
    path.write_text(json.dumps({"label": "a", "times": {"a": 1.0}, "refused": {}, "device": "x"}))
    assert read(path, ["a"]) == Choice("a", {"a": 1.0}, {}, "x")
    assert read(path, ["b"]) is None
    path.write_text("{half")
    assert read(path, ["a"]) is None


def test_a_key_depends_on_shape_features_and_candidates():
    shape, wider = make([40]).shape, make([40], budget=4).shape
    one = {"reference": ReferenceProvider()}
    keys = {
        auto.key(shape, Features(), one),
        auto.key(wider, Features(), one),
        auto.key(shape, Features(soft_cap=1.0), one),
        auto.key(shape, Features(), one | {"exact": ReferenceProvider(exact=True)}),
    }
    assert len(keys) == 4


def test_measuring_inside_a_capture_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    shape = make([40]).shape
    provider = AutoProvider(folder=tmp_path)
    with pytest.raises(RuntimeError, match="before a graph is captured"):
        provider.measure({"reference": ReferenceProvider()}, ["reference"], {}, shape, Features())
