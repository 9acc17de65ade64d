"""How a server was started: its command line, `docker run`, or the arguments that it logs."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve import ServeFacts, Server
from volta_doctor.facts.serve.command_line import allowed, without_secrets
from volta_doctor.facts.serve.engines import ENGINES, Engine, read_flags, recognise
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._names import ENVIRONMENT, SERVER
from volta_doctor.logs.text import Line, Text

_COMMANDS = (
    "vllm serve", "vllm.entrypoints", "lmdeploy serve", "sglang", "llama-server", "ollama serve",
    "text-generation-", "volta-serve", "vllm-openai",
)  # fmt: skip
_LOGS = ("non-default args", "Namespace(", "ServerArgs(", "LLM engine")
_BY_NAME = {engine.name: engine for engine in ENGINES}
_IMAGES = (("vllm-openai", "vllm"), ("text-generation-inference", "tgi"))
_LOGGED = re.compile(
    r"(?:non-default args: ?|args: ?|server_args=|with config: ?)"
    r"(?P<kind>Namespace|ServerArgs)?(?P<said>.*)"
)
_PAIR = re.compile(r"['\"]?\b([a-z]\w*)['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[^,\s{}()\[\]]+)")
_GIVEN = re.compile(r'"_serve_flags"\s*:\s*"(.*)"')  # noted in a config.json, as reports do
_VARIABLE = re.compile(
    r"(?:(?:export|ENV|set|Environment=\"?|-e|--env)\s*)?([A-Z][A-Z0-9_]{3,})=(\S*)$"
)
_OTHER_NAMES = {"max-seq-len": "max-model-len"}


class _Command(NamedTuple):
    engine: Engine
    words: list[str]
    argv: list[str]
    line: Line
    env: dict[str, str]


@reader(*_COMMANDS, *_LOGS, "_serve_flags", after=30)
def serve(text: Text) -> Iterator[Part]:
    """Yield the first server of a text, with what it logs of its arguments."""
    command = next(_commands(text), None)
    logged, engine, seen = _arguments(text)
    if command is None and not logged:
        return
    env = _variables(text) | (command.env if command else {})
    engine = command.engine if command else engine
    words = command.words if command else []
    flags, wrong = read_flags(engine, words, env, logged)
    fork = engine.name == "vllm" and re.search(r"1cat[-_]?vllm", text.joined(), re.IGNORECASE)
    server = Server(
        name=SERVER,
        engine="1cat-vllm" if fork else engine.name,
        source=text.name,
        argv=without_secrets(command.argv) if command else [],
        flags=flags,
        flags_problem=wrong,
        env=allowed(env),
        prefix=ENVIRONMENT if engine.python else None,
    )
    if command:
        seen.insert(0, Seen("serve", " ".join(server.argv), text.evidence(command.line)))
    judges = ["topo-tp", "cuda-graph-capture", "nccl-env", "mem-fit"]
    judges += ["cuda-env"] if env else []
    judges += ["xformers-flash-attn-volta"] if flags.attention_backend else []
    yield Part(Facts(serve=section(ServeFacts(servers=[server]))), judges, seen)


def _commands(text: Text) -> Iterator[_Command]:
    """Yield the command lines, continued ones put together."""
    lines = iter(text.lines)
    for line in lines:
        if given := _GIVEN.search(line.text):
            words = _split(given[1])
            yield _Command(_BY_NAME["vllm"], words, words, line, {})
            continue
        body = line.body
        if not any(hint in body for hint in (*_COMMANDS, "docker run", "podman run")):
            continue
        first = line
        while body.endswith("\\") and (line := next(lines, None)):  # type: ignore[assignment]
            body = f"{body[:-1]} {line.body}"
        yield from _in(body, first)


def _in(body: str, line: Line) -> Iterator[_Command]:
    words = _split(re.sub(r"^(?:Exec\w+|command|CMD)\s*[=:]\s*[-@]?", "", body))
    env: dict[str, str] = {}
    for start, word in enumerate(words):
        if match := _VARIABLE.fullmatch(word):
            env[match[1]] = match[2]
        of_image = next((engine for image, engine in _IMAGES if image in word), None)
        options = words[start + 1 :]
        if of_image and "run" in words[:start] and not recognise(options):
            yield _Command(_BY_NAME[of_image], options, words, line, env)
            return
        if found := recognise(words[start:]):
            yield _Command(found[0], found[1], words[start:], line, env)
            return


def _split(text: str) -> list[str]:
    """Split as a shell does; what is no sound shell word is split at blanks."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    ends = [
        i for i, word in enumerate(words) if word in ("|", "&&", "||", ";", "&", ">", "2>&1", ">>")
    ]
    return words[: ends[0]] if ends and ends[0] > 1 else words


def _arguments(text: Text) -> tuple[dict[str, str], Engine, list[Seen]]:
    """Return the options that a server logs as it starts, and which engine logs in that form."""
    found: dict[str, str] = {}
    seen: list[Seen] = []
    engine = _BY_NAME["vllm"]
    for line in text.lines:
        match = _LOGGED.search(line.text)
        if match is None or not _PAIR.search(match["said"]):
            continue
        if match["kind"] == "ServerArgs":
            engine = _BY_NAME["sglang"]
        for name, said in _PAIR.findall(match["said"]):
            name, said = name.replace("_", "-"), said.strip("'\"").removeprefix("torch.")
            if said not in ("None", ""):
                said = {"True": "true", "False": "false"}.get(said, said)
                found.setdefault(_OTHER_NAMES.get(name, name), said)
        seen.append(Seen("serve", "", text.evidence(line)))
    return found, engine, seen[:2]


def _variables(text: Text) -> dict[str, str]:
    """Return the variables that a text sets on lines of their own."""
    found: dict[str, str] = {}
    for line in text.lines:
        if match := _VARIABLE.fullmatch(line.body.rstrip('"')):
            found.setdefault(match[1], match[2].strip("\"'"))
    return found
