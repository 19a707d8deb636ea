"""A prefill server in a process of its own, and requests that a decode server answers with its help."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines.sglang.serving import ARGUMENTS, GPU, Generated, Server, read_answer, sampling

HOST = "127.0.0.1"
START, ANSWER = 150, 60
"""Seconds that a start, and all answers of one call, may take."""

TRANSFER = {"disaggregation_transfer_backend": "nixl"}

ENVIRONMENT = {
    "SGLANG_HOST_IP": HOST,
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "30",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "30",
    "VORTEX_PROBE_TRANSFERS": "1",
}
"""Of both servers: they find each other on this machine, and give up before the test does."""


class PrefillServer:
    """SGLang as it is, reached by HTTP, as behind SGLang's router."""

    def __init__(self, model: Path, log: Path, **arguments: Any) -> None:
        self.log = log
        self.port, self.bootstrap_port = free_ports(2)
        given = {
            "model_path": str(model), "host": HOST, "port": self.port, "skip_server_warmup": True,
            "attention_backend": "flashinfer" if GPU else "torch_native", "page_size": 16,
            "disaggregation_mode": "prefill", "disaggregation_bootstrap_port": self.bootstrap_port,
            "disable_overlap_schedule": not GPU,  # with it, what is cached is sent after an event of CUDA
            **TRANSFER, **ARGUMENTS, "log_level": "info", **arguments,
        }  # fmt: skip
        with log.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *flags(given)],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError, with the end of its log, when it ended or takes too long."""
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"the prefill server did not start\n{self.tail()}")

    def generate(self, **request: Any) -> list[dict[str, Any]]:
        """POST /generate."""
        body = json.dumps(request).encode()
        address, header = f"http://{HOST}:{self.port}/generate", {"Content-Type": "application/json"}
        try:
            sent = urllib.request.Request(address, body, header)
            with urllib.request.urlopen(sent, timeout=ANSWER) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from error

    def tail(self, characters: int = 6000) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:]

    def end(self) -> None:
        """With the processes that it started."""
        from sglang.srt.utils import kill_process_tree

        kill_process_tree(self.process.pid)
        self.process.wait(10)


@contextmanager
def prefilling(model: Path, log: Path, **arguments: Any) -> Iterator[PrefillServer]:
    """A prefill server that is starting; it and what is started meanwhile have `ENVIRONMENT`."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ |= ENVIRONMENT
    server = PrefillServer(model, log, **arguments)
    try:
        yield server
    finally:
        server.end()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def transferred(
    prefill: PrefillServer, decode: Server, prompts: Sequence[Sequence[int]], tokens: int, room: int
) -> list[Generated]:
    """Both servers get every request, under one number each: `room` and those after it.

    Raises what one of them raised, with the end of the prefill server's log, or TimeoutError.
    """
    count = len(prompts)
    request: dict[str, Any] = {
        "input_ids": [list(each) for each in prompts],
        "sampling_params": sampling(tokens),
        "return_logprob": True,
        "top_logprobs_num": 2,
        "bootstrap_host": [HOST] * count,
        "bootstrap_port": [prefill.bootstrap_port] * count,
        "bootstrap_room": list(range(room, room + count)),
    }

    async def both() -> list[dict[str, Any]]:
        sent = asyncio.to_thread(prefill.generate, **request)
        answers, _ = await asyncio.gather(decode.engine.async_generate(**request), sent)
        return answers

    try:
        return [read_answer(each) for each in decode.run(asyncio.wait_for(both(), ANSWER))]
    except Exception as error:
        error.add_note(f"the prefill server's log ends with\n{prefill.tail()}")
        raise


def flags(arguments: dict[str, Any]) -> list[str]:
    """As SGLang's command takes them."""
    found = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        elif value is not False:
            found += [flag, str(value)]
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
