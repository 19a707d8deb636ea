"""The process of one case: starts a server, loads it, and writes what it measured."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.serving.cases import ALGORITHM, BLOCK, CONTEXT, Case, Load, config

ROOT = Path(__file__).resolve().parents[2]


def model_folder(folder: Path, name: str, changes: dict[str, Any]) -> Path:
    """A folder that holds a configuration alone."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config(name, changes)), encoding="utf-8")
    return path


def arguments(case: Case, model: Path, device: str, most: int) -> dict[str, Any]:
    """Arguments of `sglang.Engine`. most: requests that run at once; 0.5.16 admits one fewer than its limit."""
    found: dict[str, Any] = {
        "model_path": str(model), "load_format": "dummy", "skip_tokenizer_init": True, "page_size": BLOCK,
        "mem_fraction_static": 0.8, "context_length": CONTEXT, "max_running_requests": most + 1,
        "chunked_prefill_size": 8192, "grammar_backend": "none", "log_level": "info", "decode_log_interval": 20,
        "random_seed": 0,
    }  # fmt: skip
    if device == "cpu":
        return found | {"device": "cpu", "dtype": "float32", "mem_fraction_static": 0.3, "max_total_tokens": 8192,
                        "context_length": 2048, "chunked_prefill_size": 512}  # fmt: skip
    rated = any(load.rate is not None for load in case.loads)
    sizes = sorted({size for size in (1, 2, 4, 8, 16, 32) if rated and size <= most} | {most})
    return found | {"cuda_graph_bs_decode": sizes, "cuda_graph_bs_prefill": [8192]}


def start(case: Case, given: dict[str, Any]) -> Any:
    if case.values is None:
        import sglang

        dense = "torch_native" if given.get("device") == "cpu" else "flashinfer"
        return sglang.Engine(attention_backend=dense, **given)
    from vortex.engines.sglang import Engine

    return Engine(algorithm=ROOT / ALGORITHM, values=case.values, **given)


def prompt(seed: int, length: int, vocabulary: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocabulary - 300) for _ in range(length)]


def sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}


async def times_of(engine: Any, ids: list[int], tokens: int, wait: float) -> list[float]:
    """When each token of a streamed answer came, in seconds; the time it was sent comes first."""
    await asyncio.sleep(wait)
    moments = [time.perf_counter()]
    stream = await engine.async_generate(input_ids=ids, sampling_params=sampling(tokens), stream=True)
    async for piece in stream:
        now = time.perf_counter()
        moments += [now] * (piece["meta_info"]["completion_tokens"] - len(moments) + 1)
    return moments


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def measure(engine: Any, load: Load, vocabulary: int, seed: int) -> dict[str, Any]:
    """Sends a load and waits for its end."""
    prompts = [prompt(seed + number, load.input, vocabulary) for number in range(load.requests)]
    begin = time.perf_counter()
    if load.rate is None:
        found = engine.generate(input_ids=prompts, sampling_params=sampling(load.output))
        tokens, row = sum(each["meta_info"]["completion_tokens"] for each in found), {}
    else:
        moments = engine.loop.run_until_complete(sent(engine, load, prompts, seed))
        tokens, row = sum(len(each) - 1 for each in moments), times(moments)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds, **row}


async def sent(engine: Any, load: Load, prompts: list[list[int]], seed: int) -> list[list[float]]:
    """Requests at random times, `load.rate` a second on average; `times_of` each."""
    draw, now, running = random.Random(seed), 0.0, []
    for ids in prompts:
        running.append(times_of(engine, ids, load.output, now))
        now += draw.expovariate(load.rate or 1.0)
    return await asyncio.gather(*running)


def times(moments: list[list[float]]) -> dict[str, float]:
    """Over requests: ms a token after the first one, and ms until the first one; over tokens: gaps between them."""
    each = [(one[-1] - one[1]) / max(len(one) - 2, 1) for one in moments]
    gaps = [later - earlier for one in moments for earlier, later in pairwise(one[1:])]
    first = [one[1] - one[0] for one in moments]
    return {
        f"{name}_p{round(part * 100)}_ms": percentile(values, part) * 1e3
        for name, values in (("per_token", each), ("gap", gaps), ("first_token", first))
        for part in (0.5, 0.95)
    }


def emptied(engine: Any) -> None:
    """Waits until the server has let go of the last requests and emptied its prefix cache."""
    give_up = time.perf_counter() + 10
    while not engine.flush_cache().success and time.perf_counter() < give_up:
        time.sleep(0.05)


def counters(engine: Any) -> dict[str, Any] | None:
    """What our backend says of the decode steps so far, without its layers."""
    (state, *_) = engine.get_server_info()["internal_states"]
    found = state.get("vortex")
    return None if found is None else {key: value for key, value in found.items() if key != "layers"}


def main() -> None:
    """argv: a JSON file that says what to do, and the JSON file of the results."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    case, results = Case.of(spec["case"]), Path(sys.argv[2])
    model = model_folder(Path(spec["models"]), case.model, spec["changes"])
    vocabulary = config(case.model, spec["changes"])["vocab_size"]
    most = max(32 if load.rate is not None else load.requests for load in case.loads)
    engine = start(case, arguments(case, model, spec["device"], most))
    found: dict[str, Any] = {"ready": time.time(), "loads": []}
    try:
        measure(engine, Load(2, 64, 24), vocabulary, 10**6)
        for number, load in enumerate(case.loads):
            if load.rate is not None:
                emptied(engine)
            before = counters(engine)
            print(f"== {load.name}", flush=True)
            # At once, longer prompts begin with the shorter ones of the load before, and prefill the rest.
            row = measure(engine, load, vocabulary, 0 if load.rate is None else number * 1000)
            print("== end", flush=True)
            after = counters(engine)
            if after is not None:
                row["counters"] = {key: after[key] - (before or {}).get(key, 0) for key in after}
            found["loads"].append({"load": load.name, **row})
            results.write_text(json.dumps(found), encoding="utf-8")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
