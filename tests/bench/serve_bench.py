"""Speed and memory of volta-serve over HTTP, as one client sees them.

    python tests/bench/serve_bench.py --model DIR [--write]

Starts a server on a free port and measures greedy decoding (tokens/s between the first and the
last token of a stream), the time to the first token for short and long prompts, the total speed
of several streams at once, and the server's resident memory. Every figure is the median of
`--repeats` runs; --write records them under tests/bench/results/.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

RESULTS = Path(__file__).parent / "results"
DECODE_TOKENS = 128
PROMPTS = (32, 512)  # tokens
STREAMS = (2, 4)


class Server:
    """volta-serve on a free port, for the length of a with block."""

    def __init__(self, model: Path, options: list[str]) -> None:
        code = "from volta_runtime.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--model", str(model), "--port", "0"]
        self._command = [*command, *options]

    def __enter__(self) -> httpx.Client:
        start = time.monotonic()
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        log = ""
        for line in self.process.stderr:
            log += line
            if found := re.search(r"serving .* at (http://\S+)", line):
                self.start_s = time.monotonic() - start
                # Whatever follows is read away, so that the pipe never fills.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return httpx.Client(base_url=found[1], timeout=600)
        raise SystemExit(f"the server ended:\n{log}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def rss_mib(self) -> float:
        """Resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def stream(client: httpx.Client, prompt: list[int], max_tokens: int) -> tuple[float, float]:
    """Seconds to the first event with text, and tokens/s after it."""
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.monotonic()
    first = last = 0.0
    tokens = 0
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            raise SystemExit(response.text)
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"]:
                last = time.monotonic()
                first = first or last
            else:
                tokens = event["usage"]["completion_tokens"]
    return first - start, (tokens - 1) / (last - first) if last > first else 0.0


def together(client: httpx.Client, count: int) -> float:
    """Tokens/s of `count` equal streams in all, prompts included."""
    threads = [
        threading.Thread(target=stream, args=(client, prompt(32, i), DECODE_TOKENS))
        for i in range(count)
    ]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count * DECODE_TOKENS / (time.monotonic() - start)


def prompt(length: int, salt: int = 0) -> list[int]:
    """Token ids of ordinary words, never twice the same."""
    return [1000 + (i * 37 + salt * 101) % 2000 for i in range(length)]


def measure(model: Path, options: list[str], repeats: int) -> dict[str, Any]:
    server = Server(model, options)
    with server as client:
        result: dict[str, Any] = {
            "start_s": round(server.start_s, 2),
            "rss_after_start_mib": round(server.rss_mib()),
        }
        stream(client, prompt(16), 16)  # warm-up
        runs = [stream(client, prompt(32, i), DECODE_TOKENS)[1] for i in range(repeats)]
        result["decode_tokens_per_s"] = round(statistics.median(runs), 1)
        result["decode_tokens_per_s_runs"] = [round(run, 1) for run in runs]
        for length in PROMPTS:
            firsts = [stream(client, prompt(length, i), 2)[0] for i in range(repeats)]
            result[f"ttft_s_{length}_tokens"] = round(statistics.median(firsts), 3)
        for count in STREAMS:
            totals = [together(client, count) for _ in range(repeats)]
            result[f"total_tokens_per_s_{count}_streams"] = round(statistics.median(totals), 1)
        result["rss_at_end_mib"] = round(server.rss_mib())
    return result


def cpu_seconds_of_others() -> float:
    """CPU time since boot of every process but this one and its ended children."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def cpu_name() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="record under tests/bench/results/")
    arguments, options = parser.parse_known_args()
    from volta_runtime.ops import kernels_info

    now, start, others = datetime.now(timezone.utc), time.monotonic(), cpu_seconds_of_others()
    cores = len(os.sched_getaffinity(0))
    results = measure(arguments.model, options, arguments.repeats)
    others_share = (cpu_seconds_of_others() - others) / (time.monotonic() - start) / cores
    report = {
        "benchmark": "serve",
        "date": now.isoformat(timespec="seconds"),
        "model": arguments.model.name,
        "options": options,
        "repeats": arguments.repeats,
        "generated_tokens": DECODE_TOKENS,  # in each stream that measures decoding
        "cpu": cpu_name(),
        "cores": cores,
        "cpu_share_of_other_processes": round(others_share, 2),  # figures hold for a small one
        "torch": version("torch"),
        "kernels": kernels_info(),
        "results": results,
    }
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"serve-{now:%Y-%m-%d}.json").write_text(text)


if __name__ == "__main__":
    main()
