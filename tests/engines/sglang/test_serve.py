"""`vortex serve`: OpenAI's protocol, streamed and not, and what it says when it cannot start.

Where there is a GPU the server runs on it, in graphs and with the overlap scheduler.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.engines.sglang.models import CONTEXT
from tests.engines.sglang.serving import FLOWS, GPU

DEVICE = [] if GPU else ["--device", "cpu", "--dtype", "float32"]
TEXT = "the quick brown fox jumps over the lazy dog, again and again, until the page is full. "


def arguments(model, *more):
    return [
        sys.executable, "-m", "vortex", "serve", f"{FLOWS}:Remembering", "--set", "budget=5", "sink_blocks=1",
        "--model-path", str(model), *DEVICE, "--mem-fraction-static", "0.3",
        "--max-total-tokens", "2048", "--context-length", str(CONTEXT), "--max-running-requests", "4",
        "--grammar-backend", "none", "--served-model-name", "tiny", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as file:
        command = arguments(model, "--host", "127.0.0.1", "--port", str(port), "--enable-metrics",
                            "--decode-log-interval", "4")  # fmt: skip
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()[-4000:]
            if answers(url):
                break
            time.sleep(0.5)
        else:
            pytest.fail(log.read_text()[-4000:])
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


COMPLETION = {"model": "tiny", "prompt": TEXT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}


def completion(url) -> str:
    with post(f"{url}/v1/completions", COMPLETION) as answer:
        (choice,) = json.loads(answer.read())["choices"]
    assert choice["finish_reason"] == "length"
    return choice["text"]


def streamed(url, body) -> list[dict]:
    with post(url, {**body, "stream": True}) as answer:
        lines = [line.decode().strip() for line in answer]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event)["choices"][0] for event in events[:-1]]


def test_a_streamed_completion_is_that_of_one_answer(address):
    completion(address)  # A prompt that is found in the cache is rounded otherwise than one that is not.
    whole = completion(address)
    pieces = streamed(f"{address}/v1/completions", COMPLETION)
    assert len(pieces) > 5 and len(whole) >= 30
    assert "".join(piece["text"] for piece in pieces) == whole


def test_a_streamed_chat_is_that_of_one_answer(address):
    body = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 20, "temperature": 0,
            "ignore_eos": True}  # fmt: skip
    for _ in range(2):
        with post(f"{address}/v1/chat/completions", body) as answer:
            whole = json.loads(answer.read())["choices"][0]["message"]["content"]
    pieces = streamed(f"{address}/v1/chat/completions", body)
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == whole != ""


def counters(url) -> dict:
    with urllib.request.urlopen(f"{url}/get_server_info", timeout=60) as answer:
        (state,) = json.loads(answer.read())["internal_states"]
    return state["vortex"]


def test_server_information_shows_that_the_sparse_path_ran(address):
    before = counters(address)
    completion(address)
    now = counters(address)
    # A step that the overlap scheduler began before it saw the end counts too.
    assert 2 * 29 <= now["sparse"] - before["sparse"] <= 2 * (31 if GPU else 29)
    assert now["dense"] == before["dense"]
    grown = [now["layers"][layer]["kv_bytes"] - before["layers"][layer]["kv_bytes"] for layer in (0, 1)]
    assert grown[0] == grown[1] > 0 and now["kv_bytes"] - before["kv_bytes"] == sum(grown)


def metrics(url) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("sglang:vortex_")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_metrics_show_it_as_well(address):
    completion(address)
    before = metrics(address)
    completion(address)
    grown = {name: value - before[name] for name, value in metrics(address).items()}

    def total(name, *labels):
        return sum(
            value
            for key, value in grown.items()
            if key.startswith(name) and all(each in key for each in labels)
        )

    sparse = [
        total("sglang:vortex_decode_rows_total", 'path="sparse"', f'layer="{layer}"') for layer in (0, 1)
    ]
    # What came since the last multiple of 4 steps is told later.
    assert sparse[0] == sparse[1] and 29 - 4 <= sparse[0] <= 29 + 4
    assert total("sglang:vortex_decode_rows_total", 'path="dense"') == 0
    assert total("sglang:vortex_kv_read_bytes_total") > 0


@pytest.mark.parametrize(
    ("more", "code", "part"),
    [
        (["--speculative-algorithm", "NGRAM"], "VTX622", "--speculative-algorithm"),
        (["--attention-backend", "triton"], "", "--attention-backend triton"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_message(model, more, code, part):
    ended = subprocess.run(arguments(model, *more), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert code in ended.stderr and part in ended.stderr and "Traceback" not in ended.stderr
