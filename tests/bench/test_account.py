"""The byte account: published figures, measured bounds, and where each formula bends."""

import json
import subprocess
import sys
from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vortex.bench.account import (
    AccountError,
    Bits,
    Costs,
    KVSparsity,
    ProjectionSparsity,
    Step,
    entry_bytes,
    nearest,
)
from vortex.bench.models import MODELS, Model, ModelError, load_model

LLAMA8, QWEN8, LLAMA3 = (MODELS[name] for name in ("Llama-3.1-8B", "Qwen3-8B", "Llama-3.2-3B"))


@pytest.mark.parametrize(
    ("model", "projections", "kv", "attention", "expected"),
    [
        (LLAMA8, "0.5", "0.3", True, 76_069),
        (QWEN8, "0.5", "0.3", True, 67_291),
        (LLAMA3, "0.5", "0.3", True, 35_109),
        (LLAMA8, "0.5", "0.3", False, 61_440),
        (QWEN8, "0.5", "0.3", False, 52_663),
        (LLAMA8, "0.7", "0.3", True, 45_641),
        (LLAMA8, "0.5", "0.5", True, 106_496),
    ],
)
def test_crossover_of_published_models(model, projections, kv, attention, expected):
    projection = ProjectionSparsity(F(projections), attention)
    assert nearest(Step(model).crossover(KVSparsity(keep=F(kv)), projection)) == expected


def test_other_reads_of_qwen3_8b():
    assert round(float(Step(QWEN8).reads(512).other) / 1e9, 3) == 1.245


@pytest.mark.parametrize(("context", "percent"), [(512, 0.5), (32_768, 24.2)])
def test_kv_share_of_qwen3_8b(context, percent):
    assert round(100 * float(Step(QWEN8).reads(context).kv_share), 1) == percent


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_four_bit_weights_bring_the_crossover_four_times_closer(model):
    kv, projection = KVSparsity(keep=F("0.3")), ProjectionSparsity(F("0.5"))
    whole = Step(model).crossover(kv, projection)
    assert Step(model, Bits(weight=F(4))).crossover(kv, projection) * 4 == whole


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-1.7B", 1_720_574_976),
        ("Qwen3-4B", 4_022_468_096),
        ("Qwen3-8B", 8_190_735_360),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Llama-3.2-3B", 3_212_749_824),
        ("SmolLM2-135M", 134_515_008),
    ],
)
def test_dimensions_give_the_published_parameter_count(name, parameters):
    assert MODELS[name].parameters == parameters


def test_bounds_of_the_measured_layer():
    """One layer, 16 requests of 32,768 tokens, 125 blocks of 16, centroids; 4.3 TB/s."""
    layer = Model("layer", 1, 4096, 14_336, 32, 8, 128, 1, tied=True)
    kv = KVSparsity(tokens=2000, entries=entry_bytes(16, [128]))
    sparse, dense = Step(layer, batch=16).reads(32_768, kv), Step(layer, batch=16).reads(32_768)
    assert sparse.entries == 16 * 2048 * 8 * 128 * 2  # 67 MB
    assert sparse.kv == 16 * 125 * 16 * 8 * 128 * 2 * 2  # 131 MB
    assert nearest((sparse.entries + sparse.kv) / F("4.3e6")) == 46
    assert nearest(dense.kv / F("4.3e6")) == 499


RATIOS = st.fractions(0, 1, max_denominator=50)
STEPS = st.builds(
    Step,
    st.sampled_from(list(MODELS.values())),
    st.builds(Bits, st.sampled_from([F(4), F("4.5"), F(8), F(16)]), st.sampled_from([F(8), F(16)])),
    st.integers(1, 40),
)
KV = st.one_of(
    st.builds(KVSparsity, keep=RATIOS, entries=st.sampled_from([F(0), F(16), F(32)])),
    st.builds(KVSparsity, tokens=st.integers(1, 4096), entries=st.sampled_from([F(0), F(16), F(32)])),
)


@given(STEPS, KV, st.builds(ProjectionSparsity, RATIOS, st.booleans()))
def test_reads_agree_with_the_crossover_formula(step, kv, projection):
    """On each side of n*, the kind that the formula prefers reads fewer bytes."""
    crossing = step.crossover(kv, projection)
    contexts = [1, 7, 4096, 10**7] if crossing is None else [int(crossing), int(crossing) + 1]
    for context in contexts:
        if context < 1:
            continue
        saves_more = step.reads(context, kv).total < step.reads(context, None, projection).total
        if crossing is None:
            assert not saves_more
        elif context > crossing:
            assert saves_more or kv.kept(context) == context
        elif context < crossing:
            assert not saves_more


@given(STEPS, KV, st.builds(ProjectionSparsity, RATIOS), st.integers(1, 10**6))
def test_savings_of_both_kinds_add(step, kv, projection, context):
    dense, both = step.reads(context), step.reads(context, kv, projection)
    alone = step.reads(context, kv).total + step.reads(context, None, projection).total
    assert both.total == alone - dense.total
    assert dense.total - step.reads(context, None, projection).total == step.saved_by(projection)


def test_union_of_channels_over_a_batch():
    sparse = ProjectionSparsity(F(1, 2))
    assert [sparse.read(batch) for batch in (1, 2, 8)] == [F(1, 2), F(3, 4), F(255, 256)]
    assert ProjectionSparsity(F(1, 2), union=F(3, 5)).read(8) == F(3, 5)
    assert ProjectionSparsity(F(1, 2), union=F(3, 5)).read(1) == F(1, 2)


def test_a_batch_brings_the_crossover_closer_by_more_than_its_size():
    kv, projection = KVSparsity(keep=F("0.3")), ProjectionSparsity(F("0.5"))
    one, eight = (Step(LLAMA8, batch=batch).crossover(kv, projection) for batch in (1, 8))
    assert eight == one * F(1, 256) / F(1, 2) / 8


def test_a_token_budget_moves_the_crossover_by_the_tokens_it_reads():
    projection = ProjectionSparsity(F("0.5"))
    free = Step(LLAMA8).crossover(KVSparsity(keep=F(0)), projection)
    assert Step(LLAMA8).crossover(KVSparsity(tokens=2048), projection) == free + 2048


def test_a_budget_that_covers_the_context_reads_no_entries():
    kv = KVSparsity(tokens=2048, entries=F(16))
    assert Step(QWEN8).reads(2048, kv) == Step(QWEN8).reads(2048)
    assert Step(QWEN8).reads(2049, kv).entries == F(16) * 8 * 36 * 2049


def test_entries_as_large_as_the_saving_never_cross():
    """0.3 kept saves 0.7 * 512 bytes of a token and KV head."""
    projection = ProjectionSparsity(F("0.5"))
    assert Step(QWEN8).crossover(KVSparsity(F("0.3"), entries=F("358.4")), projection) is None
    assert Step(QWEN8).crossover(KVSparsity(F("0.3"), entries=F("358.3")), projection) > 10**8


def test_entries_of_a_block_per_token():
    assert entry_bytes(16, [128]) == 16
    assert entry_bytes(16, [128, 128]) == 32
    assert entry_bytes(32, [128], F(8)) == 4


def test_measured_costs_move_the_crossover_by_the_bytes_they_are_worth():
    kv, projection = KVSparsity(keep=F("0.3")), ProjectionSparsity(F("0.5"))
    step, bandwidth = Step(LLAMA8), F("4.3e12")
    ideal = step.crossover(kv, projection)
    assert step.crossover(kv, projection, Costs(bandwidth)) == ideal
    slower = step.crossover(kv, projection, Costs(bandwidth, kv_us=F(10)))
    assert slower - ideal == 32 * 10 * F("4.3e6") / (F("0.7") * 131_072)
    assert step.crossover(kv, projection, Costs(bandwidth, F(10), F(10))) == ideal
    assert step.crossover(kv, projection, Costs(bandwidth, projection_us=F(10**4))) == 0


def test_a_budget_is_ahead_everywhere_of_projections_that_cost_more_than_they_save():
    costs = Costs(F("4.3e12"), projection_us=F(10**4))
    assert Step(LLAMA8).crossover(KVSparsity(tokens=10**6), ProjectionSparsity(F("0.5")), costs) == 0


def test_kv_sparsity_pays_from_where_its_cost_is_saved():
    costs = Costs(F("4.3e12"), kv_us=F(10))
    assert Step(LLAMA8).pays_from(KVSparsity(keep=F("0.3")), costs) == 320 * F("4.3e6") / (F("0.7") * 131_072)
    assert Step(LLAMA8).pays_from(KVSparsity(keep=F(1)), costs) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KVSparsity(), "give one of the two"),
        (lambda: KVSparsity(F(1, 2), 5), "give one of the two"),
        (lambda: KVSparsity(F(2)), "0 to 1"),
        (lambda: KVSparsity(tokens=0), "positive"),
        (lambda: KVSparsity(tokens=1, entries=F(-1)), "not negative"),
        (lambda: ProjectionSparsity(F(-1)), "0 to 1"),
        (lambda: ProjectionSparsity(F(1, 2), union=F(1, 3)), "keep to 1"),
        (lambda: Bits(weight=F(0)), "bits"),
        (lambda: Costs(F(0)), "bandwidth"),
        (lambda: Step(QWEN8, batch=0), "at least one request"),
        (lambda: Step(QWEN8).reads(0), "at least one token"),
        (lambda: entry_bytes(0, [1]), "positive"),
    ],
)
def test_error_says_what_a_figure_should_be(make, words):
    with pytest.raises(AccountError, match=words):
        make()


CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "sliding_window": None,
}


def write_config(folder, **changes):
    config = {key: value for key, value in (CONFIG | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_config_file_equals_the_model_by_name(tmp_path):
    for source in (write_config(tmp_path), tmp_path / "config.json"):
        model = load_model(str(source))
        assert model.parameters == QWEN8.parameters
        assert Step(model).reads(1000) == Step(QWEN8).reads(1000)


def test_a_config_without_head_dim_or_kv_heads(tmp_path):
    model = load_model(str(write_config(tmp_path, head_dim="absent", num_key_value_heads="absent")))
    assert (model.head_dim, model.kv_heads) == (128, 32)


def test_qwen2_has_biases_on_q_k_and_v(tmp_path):
    assert load_model(str(write_config(tmp_path, model_type="qwen2"))).vectors == 36 * (8192 + 6144) + 4096


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen3_moe"}, "'qwen3_moe' is not accounted for; these are: llama"),
        ({"sliding_window": 4096}, "sliding_window 4096"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"hidden_size": "absent"}, "hidden_size should be a positive integer, got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers should be a positive integer"),
        ({"num_key_value_heads": 5}, "32 query heads on 5 KV heads"),
    ],
)
def test_a_config_the_account_does_not_describe_is_refused(tmp_path, changes, words):
    with pytest.raises(ModelError, match=words):
        load_model(str(write_config(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("source", "words"),
    [("Qwen3-8", "did you mean Qwen3-8B"), ("gpt", "known are Qwen3-0.6B"), ("no/config.json", "no file")],
)
def test_an_unknown_model(source, words):
    with pytest.raises(ModelError, match=words):
        load_model(source)


def test_a_file_that_is_no_config(tmp_path):
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("source", ["qwen3-8b", "Qwen/Qwen3-8B"])
def test_names_are_taken_with_an_organisation_and_in_any_case(source):
    assert load_model(source) is QWEN8
    assert load_model("meta-llama/Llama-3.1-8B-Instruct") is LLAMA8


def test_the_account_imports_no_torch():
    code = "import sys, vortex.bench.account, vortex.cli.bytes; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
