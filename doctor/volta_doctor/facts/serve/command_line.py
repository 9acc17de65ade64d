"""Command lines of servers: which program they start, their options, and no secrets."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Programs that start the one named after their own options.
_WRAPPERS = re.compile(
    r"env|nice|ionice|numactl|taskset|chrt|stdbuf|nohup|setsid|time|exec|sudo|runuser|setpriv"
    r"|conda|mamba|micromamba|uv|uvx|poetry|pixi|tini|dumb-init|systemd-cat|accelerate"
)
_SHELLS = re.compile(r"sh|bash|dash|zsh|ash|ksh")
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_SECRET = re.compile(
    r"key|token|secret|passw|passphrase|pwd|cred|auth|signature|(?:^|_)pat$", re.IGNORECASE
)
# In option names only whole words count: --max-total-tokens is no secret.
_SECRET_OPTION = re.compile(
    r"(?:^|[-_.])(?:keys?|api_?keys?|token|hft|secret|pass|password|passwd|passphrase|pat"
    r"|credentials?|auth)(?=$|[-_.])",
    re.IGNORECASE,
)
# Within a word: what a telling name is given (in JSON, a URL's query, an HTTP header), and what
# looks like a token of Hugging Face, OpenAI, GitHub, GitLab, NVIDIA or Amazon, or like a JWT.
_NAMED = re.compile(
    r"""((?:keys?|token|secret|passw(?:or)?d|passphrase|credentials?|signature|authorization)
    ["']?\s*[:=]\s*)("[^"]*"|'[^']*'|\[[^\]]*\]|(?:(?:bearer|basic)\s+)?[^"'&,;}\s]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{20,}|nvapi-[\w-]{20,}|AKIA[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w.-]{10,})"
    r"|(?<=\bBearer\s)\S+|(?<=\bBasic\s)\S+"
)
HIDDEN = "***"

# What of a server's environment bears on GPUs, compilers and caches. Nothing else is kept.
_KEPT = re.compile(
    r"(?!NVIDIA_REQUIRE_)(?:CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|NSIGHT|VLLM|VOLTA|TORCH|TORCHINDUCTOR|PYTORCH|TRITON"
    r"|NVCC|TVM_FFI|FLASHINFER|SGLANG|LMDEPLOY|TM|LLAMA_ARG|GGML|OLLAMA)_.*"
    r"|HOME|PATH|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONNOUSERSITE"
    r"|HF_HOME|HF_HUB_CACHE|HUGGINGFACE_HUB_CACHE|HF_HUB_OFFLINE|XDG_CACHE_HOME|TMPDIR|MAX_JOBS|CC|CXX"
    r"|CUDAARCHS|CUDACXX|CUDAHOSTCXX"
    r"|CMAKE_CUDA_ARCHITECTURES|OMP_NUM_THREADS|COMPUTE_PROFILE|OPENCL_PROFILE"
)


class Command(NamedTuple):
    """A program's words: `venv` is an environment that a shell activated before it."""

    words: list[str]
    venv: str | None = None


def program(argv: list[str]) -> list[str]:
    """Return argv as one would type it: no interpreter before a script, no directories.

    `python3 -u -m x.y --z` becomes `-m x.y --z`, `/venv/bin/python /venv/bin/x` becomes `x`.
    """
    words = list(argv)
    if words and _PYTHON.fullmatch(words[0]):
        words.pop(0)
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[2:] if words[0] in ("-X", "-W") else words[1:]
        if words[:1] == ["-m"]:
            return words
    return [words[0].rsplit("/", 1)[-1], *words[1:]] if words else []


def unwrapped(argv: list[str]) -> Iterator[Command]:
    """Yield the commands that a unit's command line may come to: behind wrappers, in a shell."""
    if not argv:
        return
    head = argv[0].rsplit("/", 1)[-1]
    if _SHELLS.fullmatch(head):
        flags = [i for i, word in enumerate(argv[1:], 1) if re.fullmatch(r"-[a-z]*c", word)]
        if flags and len(argv) > flags[0] + 1:
            yield from in_shell(argv[flags[0] + 1])
        return
    yield Command(argv)
    if _WRAPPERS.fullmatch(head):
        yield from (Command(argv[start:]) for start in range(1, len(argv)))


def in_shell(script: str) -> Iterator[Command]:
    """Yield the commands of a shell script, as far as a glance shows them."""
    venv = None
    for line in re.sub(r"\\\n", " ", script).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue
        parts: list[list[str]] = [[]]
        for word in words:
            if word and set(word) <= set(";&|()"):
                parts.append([])
            else:
                parts[-1].append(word)
        for part in parts:
            while part and re.match(r"\w+=", part[0]):
                part = part[1:]
            if len(part) > 1 and part[0] in (".", "source") and part[1].endswith("/bin/activate"):
                venv = part[1].removesuffix("/bin/activate")
            for command in unwrapped(part):
                yield Command(command.words, command.venv or venv)


def options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the positional words and the options of a command line.

    Names lose their dashes and have dashes inside: `--max_model_len=8` is max-model-len. An option
    without a value is `true`, `--no-x` makes x `false`. A JSON object's members are options too:
    `--a '{"b": 1}'` gives a.b. Of an option given twice the last counts.
    """
    found: dict[str, str] = {}
    positional: list[str] = []
    name = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            found |= _members(name, value) if equals else {name: "true"}
            if not equals and name.startswith("no-"):
                found[name[3:]] = "false"
            name = None if equals else name
        elif name:
            del found[name]
            found |= _members(name, word)
            name = None
        else:
            positional.append(word)
    return positional, found


def _members(name: str, value: str) -> dict[str, str]:
    if value.startswith("{"):
        try:
            return members(name, json.loads(value))
        except ValueError:
            pass
    return {name: value}


def members(name: str, value: Any) -> dict[str, str]:
    """Return an object's members as options by their dotted names; YAML's and JSON's types."""
    if not isinstance(value, dict):
        return {name: str(value).lower() if isinstance(value, bool) else str(value)}
    found: dict[str, str] = {}
    for key, member in value.items():
        key = str(key).replace("_", "-")
        found |= members(f"{name}.{key}" if name else key, member)
    return found


def without_secrets(argv: list[str]) -> list[str]:
    """Return the words with the values of options like --api-key hidden, and secrets in others."""
    shown = []
    hide = False
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            hide = _SECRET_OPTION.search(name.lstrip("-")) is not None
            shown.append(f"{name}={HIDDEN}" if hide and equals else hidden(word))
        elif equals and value and re.fullmatch(r"\w+", name) and _SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(HIDDEN if hide else hidden(word))
    return shown


def hidden(text: str) -> str:
    """Return a text with passwords in URLs, values of telling names and tokens hidden."""
    text = re.sub(r"(://)[^/?#\s]+(?::[^?#\s]*)?@", rf"\1{HIDDEN}@", text)
    return _TOKEN.sub(HIDDEN, _NAMED.sub(_without_value, text))


def _without_value(match: re.Match[str]) -> str:
    quote = match[2][0] if match[2][0] in "\"'" else ""
    return f"{match[1]}{quote}{HIDDEN}{quote}"


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be kept, sorted by name."""
    return {
        name: hidden(env[name])
        for name in sorted(env)
        if _KEPT.fullmatch(name) and not _SECRET.search(name)
    }
