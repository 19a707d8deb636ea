"""Decoding with the embedded engine: equal to dense where it must be, and the same alone as in a batch."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from support import MeanTopK, tiny_model, words

from vortex.engines.transformers.allocator import PoolFull
from vortex.engines.transformers.attention import NAME
from vortex.engines.transformers.compare import compare_dense, transformers_decode
from vortex.engines.transformers.engine import Engine, Sampling


def engine(model, runner=None, **settings) -> Engine:
    settings = {"page_size": 8, "pool_tokens": 256, **settings}
    return Engine(model, runner or MeanTopK(), **settings)


def exact_norm(module, x):
    return module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)


def dense_logits(loaded, tokens, dtype=torch.float32):
    """Logits after every token, by Transformers."""
    model = copy.deepcopy(loaded.model).to(dtype)
    model.set_attn_implementation("eager")
    if dtype is torch.float64:
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = partial(exact_norm, module)  # Transformers normalises in fp32 whatever comes
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].double()


def step_logits(e: Engine, prompt, following, dense=None):
    with e.open([prompt], len(following), dense) as session:
        rows = [session.logits[0].double()]
        rows += [session.step([token])[0].double() for token in following]
        return torch.stack(rows), session.meter.total()


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize(("kind", "query", "kv"), [("llama", 4, 4), ("llama", 6, 2), ("llama", 4, 1),
                                                   ("qwen3", 4, 2), ("mistral", 4, 2)])  # fmt: skip
def test_a_budget_that_covers_every_block_equals_dense(kind, query, kv, shortcut):
    loaded = tiny_model(kind, query, kv)
    runner = MeanTopK(budget=1000)
    prompt, following = words(13), words(9, seed=2)
    exact = dense_logits(loaded, prompt + following, torch.float64)[len(prompt) - 1 :]
    plain = dense_logits(loaded, prompt + following)[len(prompt) - 1 :]
    ours, counters = step_logits(engine(loaded, runner, shortcut=shortcut), prompt, following)
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max()
    assert runner.selected == counters.selections == 2 * len(following)
    dense_calls = 2 * len(following) if shortcut else 0
    assert (counters.dense_calls, counters.sparse_calls) == (dense_calls, 2 * len(following) - dense_calls)
    assert counters.kv_bytes == counters.dense_kv_bytes


def test_a_dense_engine_equals_dense_and_selects_nothing(model):
    runner = MeanTopK()
    prompt, following = words(13), words(9, seed=2)
    exact = dense_logits(model, prompt + following, torch.float64)[len(prompt) - 1 :]
    plain = dense_logits(model, prompt + following)[len(prompt) - 1 :]
    ours, counters = step_logits(engine(model, runner, dense=True), prompt, following)
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max()
    assert (runner.selected, runner.summarised, counters.sparse_calls) == (0, [], 0)


def test_a_small_budget_changes_logits_and_reads_less(model):
    prompt, following = words(60), words(9, seed=2)
    e = engine(model)
    sparse, counters = step_logits(e, prompt, following)
    dense, _ = step_logits(e, prompt, following, dense=True)
    assert torch.equal(sparse[0], dense[0])  # the prefill is dense
    assert (sparse[1:] - dense[1:]).abs().max() > 1e-2
    assert counters.sparse_calls == 18
    tokens = sum(2 * 4 + (60 + step) % 4 + 1 for step in range(9))
    assert counters.kv_bytes == 2 * 2 * tokens * (2 * 16 * 4)
    assert counters.dense_kv_bytes == 2 * 2 * sum(range(61, 70)) * (2 * 16 * 4)
    assert counters.entry_bytes == 2 * 2 * sum((60 + step) // 4 for step in range(9)) * 16 * 4


def test_sparse_logits_are_those_of_a_masked_dense_model(model):
    """The attended set is right: a model that masks everything else gives the same logits."""
    from vortex.engines.transformers.attention import DecodeStep

    prompt, token = words(40), 5
    e = engine(model)
    with e.open([prompt], 1) as session:
        ours = session.step([token], recall=True)[0].double()
        kept = session._last.attended
    allowed = torch.zeros(2, 4, 41, dtype=torch.bool)
    for layer in kept:
        for head in range(4):
            for block in layer.selection.ids[0, head // 2, : layer.selection.counts[0, head // 2]].tolist():
                allowed[layer.layer, head, block * 4 : block * 4 + 4] = True

    class Masked(DecodeStep):
        def __init__(self):
            pass

        def attend(self, layer, q, k, v, scale):
            n = q.shape[2]
            mask = torch.ones(4, n, n, dtype=torch.bool).tril()
            mask[:, -1] &= allowed[layer]
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=scale, enable_gqa=True
            )
            return out.transpose(1, 2)

    ids = torch.tensor([[*prompt, token]])
    with torch.inference_mode():
        expected = e.forward(ids, torch.arange(41)[None], Masked())[0, -1].double()
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [(1, 7, 8, 9), (15, 16, 17, 3), (33, 2, 40, 8)])
def test_unequal_prompts_in_a_batch_give_what_each_gives_alone(model, lengths):
    prompts = [words(length, seed=length) for length in lengths]
    together = engine(model).generate(prompts, 12)
    for prompt, result in zip(prompts, together.generations, strict=True):
        alone = engine(model).generate([prompt], 12).generations[0]
        assert alone.tokens == result.tokens
        assert len(result.tokens) == 12
    following = words(6, seed=9)
    with engine(model).open(prompts, 6) as session:
        batched = torch.stack([session.step([token] * len(prompts)) for token in following], dim=1)
    for prompt, rows in zip(prompts, batched, strict=True):
        ours, _ = step_logits(engine(model), prompt, following)
        torch.testing.assert_close(rows.double(), ours[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31, 32, 33])
def test_lengths_around_a_page_equal_dense_in_chunks(model, length):
    prompt = words(length)
    ours, _ = step_logits(engine(model, prefill_chunk=5), prompt, [])
    torch.testing.assert_close(ours[-1], dense_logits(model, prompt)[-1], rtol=1e-4, atol=1e-4)


def test_blocks_are_summarised_once_when_they_finish(model):
    runner = MeanTopK()
    e = engine(model, runner)
    with e.open([words(8)], 6) as session:
        assert [layer for layer, _ in runner.summarised] == [0, 1]  # block 1 is current at length 8
        assert len(runner.summarised[0][1]) == 1
        runner.summarised.clear()
        session.step([1])  # length 9: block 1 is finished
        assert [len(ids) for _, ids in runner.summarised] == [1, 1]
        for _ in range(3):
            session.step([1])
        assert len(runner.summarised) == 2
        session.step([1])  # length 13
        assert len(runner.summarised) == 4


def test_shared_pages_give_what_private_ones_give(model):
    runner = MeanTopK()
    e = engine(model, runner)
    prefix = words(24)
    first, second = prefix + words(5, seed=3), prefix + words(9, seed=4)
    e.generate([first], 4)
    runner.summarised.clear()
    following = words(8, seed=5)
    with e.open([second], 8) as session:
        assert session.cached == 24
        shared = torch.stack([session.step([token])[0] for token in following])
    summarised = {block for layer, ids in runner.summarised if layer == 0 for block in ids}
    assert len(summarised) == 40 // 4 - 24 // 4  # those of the prefix were valid
    private, _ = step_logits(engine(model), second, following)
    torch.testing.assert_close(shared.double(), private[1:], rtol=1e-4, atol=1e-4)


def test_requests_of_one_batch_share_a_prefix(model):
    e = engine(model)
    prefix = words(16)
    prompts = [[*prefix, 3], [*prefix, 4, 5], [*prefix, 3]]
    output = e.generate(prompts, 10)
    assert output.cached == 32
    for prompt, result in zip(prompts, output.generations, strict=True):
        assert engine(model).generate([prompt], 10).generations[0].tokens == result.tokens


def test_tokens_that_were_decoded_sparsely_are_not_shared(model):
    e = engine(model)
    tokens = e.generate([words(16)], 20).generations[0].tokens
    with e.open([words(16) + tokens], 0) as session:
        assert session.cached == 16


def test_a_page_that_is_freed_and_reused_is_summarised_anew(model):
    e = engine(model, pool_tokens=48)
    prompts = [words(30, seed=seed) for seed in range(4)]
    for prompt in prompts:
        reused = e.generate([prompt], 12).generations[0].tokens
        assert reused == engine(model).generate([prompt], 12).generations[0].tokens


def test_an_entry_of_a_page_given_to_another_request_is_never_used(model):
    """After a dense request overwrote the pool, entries are stale everywhere: a flow must not see them."""
    e = engine(model, pool_tokens=48)
    prompt = words(30)
    e.generate([words(40, seed=7)], 8)
    e.generate([prompt], 8, dense=True)
    assert (
        e.generate([prompt], 12).generations[0].tokens
        == engine(model).generate([prompt], 12).generations[0].tokens
    )


def test_a_full_pool_is_an_error_and_leaves_the_engine_usable(model):
    e = engine(model, pool_tokens=64)
    with pytest.raises(PoolFull, match="pool_tokens"):
        e.generate([words(30, seed=1), words(30, seed=2)], 10)
    assert e.pool.allocator.available == e.pool.allocator.capacity
    assert len(e.free_slots) == e.max_requests
    assert len(e.generate([words(30)], 10).generations[0].tokens) == 10


def test_requests_that_end_early_leave_and_free_their_pages(model):
    e = engine(model)
    with e.open([words(9), words(17, seed=2)], 10) as session:
        session.step([1, 2])
        before = e.pool.allocator.available
        session.drop([0])
        assert e.pool.allocator.available > before
        rest = session.step([3])[0].double()
    alone, _ = step_logits(engine(model), words(17, seed=2), [2, 3])
    torch.testing.assert_close(rest, alone[-1], rtol=1e-4, atol=1e-4)


def test_a_stop_token_ends_one_request_and_not_the_others(model):
    prompts = [words(9), words(17, seed=2)]
    free = engine(model).generate(prompts, 12).generations
    stop = free[0].tokens[3]
    output = engine(model).generate(prompts, 12, stop_tokens=[stop])
    first = output.generations[0]
    assert first.tokens == free[0].tokens[: free[0].tokens.index(stop) + 1]
    assert first.finish == "stop"
    other = free[1].tokens
    cut = other.index(stop) + 1 if stop in other else 12
    assert output.generations[1].tokens == other[:cut]


def test_sampling_repeats_with_a_seed_and_not_with_another(model):
    prompts = [words(9), words(17, seed=2)]

    def sample(seed):
        sampling = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=seed)
        return [
            result.tokens for result in engine(model).generate(prompts, 12, sampling=sampling).generations
        ]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=2)
    alone = engine(model).generate(prompts[1:], 12, sampling=sampling).generations[0].tokens
    assert alone == sample(1)[1]  # request i draws from seed + i


def test_a_new_request_resets_its_state_slot(model):
    e = engine(model, max_requests=1)
    for _ in range(2):
        e.generate([words(9)], 5)
        assert e.storage.ages.tolist() == [[4], [4]]


def test_recall_is_measured_on_the_asked_steps(model):
    output = engine(model).generate([words(40), words(60, seed=3)], 9, recall_every=3)
    assert [recall.step for recall in output.recalls] == [0, 3, 6]
    assert 0.05 < output.recall < 0.999
    full = engine(model, MeanTopK(budget=100), shortcut=False).generate([words(40)], 3, recall_every=1)
    assert full.recall == pytest.approx(1.0, abs=1e-5)


def test_recall_is_the_mass_of_a_softmax_by_hand(model):
    e = engine(model)
    with e.open([words(21)], 1) as session:
        session.step([4], recall=True)
        entry, table = session._last.attended[1], session._last.batch.page_table[0].tolist()
        slots = [table[at // 8] * 8 + at % 8 for at in range(22)]
        masses = []
        for head in range(4):
            kv = head // 2
            weights = (e.pool.k[1, slots, kv].double() @ entry.q[0, head].double() * 0.25).softmax(0)
            blocks = entry.selection.ids[0, kv, : entry.selection.counts[0, kv]].tolist()
            masses.append(sum(float(weights[at]) for at in range(22) if at // 4 in blocks))
        assert session.take_recall().layers[1] == pytest.approx(sum(masses) / 4, abs=1e-5)
        with pytest.raises(ValueError, match="recall=True"):
            session.take_recall()


def test_comparison_with_dense_is_exact_for_a_full_budget(model):
    tokens = words(8, seed=6)
    same = compare_dense(engine(model, MeanTopK(budget=100), shortcut=False), words(40), tokens)
    assert same.agreement == 1.0
    assert len(same.kl) == 7
    assert same.mean_kl < 1e-6
    other = compare_dense(engine(model), words(40), tokens)
    assert other.mean_kl > 1e-4
    assert compare_dense(engine(model), words(40), tokens[:1]).agreement is None


def test_greedy_dense_tokens_are_those_of_transformers(model):
    prompt = words(20)
    tokens, rate = transformers_decode(model, prompt, 16)
    assert model.model.config._attn_implementation == NAME
    assert rate > 0
    assert engine(model, dense=True).generate([prompt], 16).generations[0].tokens == tokens


def test_a_runner_that_lists_no_dense_rows_needs_the_shortcut(model):
    class Unlisted(MeanTopK):
        def select(self, *args):
            found = super().select(*args)
            return replace(found, lists_dense=False)

    runner = Unlisted(budget=100)
    assert len(engine(model, runner).generate([words(20)], 3).generations[0].tokens) == 3
    with pytest.raises(ValueError, match="lists_dense"):
        engine(model, runner, shortcut=False).generate([words(20)], 3)


def test_on_token_sees_every_token(model):
    seen: dict[int, list[int]] = {0: [], 1: []}
    output = engine(model).generate(
        [words(9), words(12)], 5, on_token=lambda request, token, text: seen[request].append(token)
    )
    assert [seen[0], seen[1]] == [result.tokens for result in output.generations]
    assert output.decoded == 8


@pytest.mark.parametrize(("call", "message"), [
    (lambda e: e.generate([[]], 4), "prompt 0 is empty"),
    (lambda e: e.generate([[97]], 4), "from 0 to 96"),
    (lambda e: e.generate([[1], [-1]], 4), "prompt 1: token ids"),
    (lambda e: e.generate([words(250)], 8), "model's context of 256"),
    (lambda e: e.generate([], 4), "at least one prompt"),
    (lambda e: e.generate("text", 4), "a list with"),
    (lambda e: e.generate([[1]], 0), "max_new_tokens"),
    (lambda e: e.generate([[1]] * 17, 1), "max_requests"),
    (lambda e: e.open([[1]], 0).step([1, 2]), "2 tokens for 1 requests"),
])  # fmt: skip
def test_what_cannot_run_is_refused(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(engine(model))


def test_settings_that_do_not_fit_are_refused(model):
    with pytest.raises(ValueError, match="page_size: 6 is no multiple of block_size 4"):
        Engine(model, MeanTopK(), page_size=6)
    with pytest.raises(ValueError, match="dense=True"):
        Engine(model)
    with pytest.raises(ValueError, match="pool_tokens"):
        Engine(model, MeanTopK(), pool_tokens=0)
    with pytest.raises(ValueError, match="dense=True"):
        Engine(model, dense=True).generate([[1]], 2, dense=False)
    for settings in ({"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Sampling(**settings)
