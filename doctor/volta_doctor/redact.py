"""A snapshot that can be shown to strangers: the same verdict, and nothing that names the site.

The same thing gets the same stand-in everywhere, so that cross references hold. redact.yaml says
what each text of a snapshot is.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import structs

from volta_doctor.facts.model import Snapshot

GONE = "(redacted)"
_SHORTEST = 3  # letters of a name that is looked for in texts
_WORDS = ("unit", "user", "host", "domain", "serial", "container")  # the kinds of such names

_GPU = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{1,8}(?:-[0-9a-fA-F]{0,12}){0,4}")
_UUID = re.compile(r"(?<!GPU-)(?<!MIG-)\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*(?![\w:])")
# modprobe@nvidia_uvm.service is no address
_UNIT = r"service|socket|target|slice|scope|mount|timer|path|device"
_MAIL = re.compile(rf"[\w.+-]+@(?![\w-]+\.(?:{_UNIT})\b)[\w-]+(?:\.[\w-]+)+")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_URL_HOST = re.compile(r"://(?:[^/@\s]+@)?([A-Za-z][\w-]*(?:\.[\w-]+)*)")
_HOME = re.compile(r"/(?:home|Users)/([^/\s:;,'\"]+)")
_FLAG = re.compile(r"[\w.-]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|true|false", re.IGNORECASE)


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """redact.yaml; the comments there say what each part is."""

    structs: dict[str, dict[str, list[str]]]
    keep_names: list[str]
    keep_domains: list[str]
    keep_cmdline: list[str]
    keep_log: list[str]


@cache
def table() -> Table:
    """Return redact.yaml."""
    import msgspec.yaml

    data = (files("volta_doctor") / "redact.yaml").read_bytes()
    return msgspec.yaml.decode(data, type=Table)


@cache
def kind_of(struct: type, field: str) -> str | None:
    """Return the kind of a field, None where the table does not name it."""
    for base in struct.__mro__:
        for kind, fields in table().structs.get(base.__name__, {}).items():
            if field in fields:
                return kind
    return None


def redacted(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with stand-ins, marked as redacted."""
    site = _Site()
    for kind, text in _texts(snapshot.facts, None):
        site.learn(kind, text)
    facts = _rewritten(snapshot.facts, None, site.stand_in)
    return structs.replace(snapshot, facts=facts, redacted=True)


def _texts(value: Any, kind: str | None) -> Iterator[tuple[str, str]]:
    """Yield every text with its kind, in the order of the snapshot."""
    if isinstance(value, str):
        if kind:
            yield kind, value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _texts(getattr(value, field), kind_of(type(value), field))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, kind)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key, kind)
            yield from _texts(item, kind)


def _rewritten(value: Any, kind: str | None, stand_in: Callable[[str, str], str]) -> Any:
    if isinstance(value, str):
        return stand_in(kind, value) if kind else value
    if isinstance(value, msgspec.Struct):
        changed = {
            field: _rewritten(getattr(value, field), kind_of(type(value), field), stand_in)
            for field in value.__struct_fields__
        }
        return structs.replace(value, **changed)
    if isinstance(value, (list, tuple)):
        return type(value)(_rewritten(item, kind, stand_in) for item in value)
    if isinstance(value, dict):
        return {
            _rewritten(key, kind, stand_in): _rewritten(item, kind, stand_in)
            for key, item in value.items()
        }
    return value


def _public(domain: str) -> bool:
    return any(domain == kept or domain.endswith(f".{kept}") for kept in table().keep_domains)


class _Site:
    """What was learnt of one site, and the stand-ins given so far."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}
        self._words: re.Pattern[str] | None = None
        self._kinds: dict[str, Callable[[str], str]] = {
            "plain": self._plain,
            "text": self._scrub,
            "host": lambda text: self._name("host", text),
            "user": lambda text: self._name("user", text),
            "home": self._scrub,
            "serial": lambda text: self._name("serial", text),
            "container": lambda text: self._name("container", text),
            "unit": self._scrub,
            "key": self._key,
            "argv": self._argument,
            "cmdline": self._cmdline,
            "log": self._log_line,
        }

    def learn(self, kind: str, text: str) -> None:
        """Note the names that a text gives away."""
        if kind == "host":
            if (stand_in := self._name("host", text)) != text:
                self._known["host"].setdefault(text.split(".")[0], stand_in)
                self._learn_domain(text)
        elif kind in ("user", "serial", "container"):
            self._name(kind, text)
        elif kind == "unit":
            name, _, suffix = text.rpartition(".")
            known = self._known.setdefault("unit", {})
            if name and name.lower() not in table().keep_names:
                known.setdefault(text, f"unit{len(known) + 1}.{suffix}")
        if kind != "plain":
            for match in _HOME.finditer(text):
                self._name("user", match[1])
            for match in _URL_HOST.finditer(text):
                if not _public(match[1]):
                    self._name("host", match[1])
                    self._learn_domain(match[1])
            for match in _GPU.finditer(text):
                if len(match[0]) == len("GPU-") + 36:
                    self._gpu(match)

    def _learn_domain(self, host: str) -> None:
        domain = host.partition(".")[2]
        if "." in domain and not _public(domain):  # com is no one's
            self._name("domain", domain)

    def stand_in(self, kind: str, text: str) -> str:
        """Return what a text becomes."""
        return self._kinds[kind](text)

    def _name(self, kind: str, text: str) -> str:
        if not text or text.lower() in table().keep_names:
            return text
        known = self._known.setdefault(kind, {})
        return known.setdefault(text, f"{kind}{len({*known.values()}) + 1}")

    def _number(self, kind: str, text: str) -> int:
        known = self._known.setdefault(kind, {})
        return int(known.setdefault(text, str(len(known) + 1)))

    def _plain(self, text: str) -> str:
        # a requirement may name a file or a private index
        return self._scrub(text) if "://" in text or "/home/" in text else text

    def _scrub(self, text: str) -> str:
        text = _LOGIN.sub("", _HOME.sub(self._home, text))
        text = _GPU.sub(self._gpu, text)
        text = _UUID.sub(self._uuid, text)
        text = _MAC.sub(lambda m: f"02:00:00:00:{self._byte2('mac', m[0])}", text)
        text = _MAIL.sub(lambda m: f"{self._name('mail', m[0])}@example.org", text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        return self._all_words().sub(self._word, text)

    def _all_words(self) -> re.Pattern[str]:
        if self._words is None:
            words = {
                word
                for kind in _WORDS
                for word in self._known.get(kind, {})
                if len(word) >= _SHORTEST
            }
            longest_first = sorted(words, key=lambda word: (-len(word), word))
            any_of = [re.escape(word) for word in longest_first]
            # other hosts of a domain come before the domain itself
            domains = "|".join(map(re.escape, self._known.get("domain", {})))
            any_of[:0] = [rf"(?:[\w-]+\.)+(?:{domains})"] if domains else []
            self._words = re.compile(rf"(?<!\w)(?:{'|'.join(any_of) or '(?!)'})(?!\w)")
        return self._words

    def _word(self, match: re.Match[str]) -> str:
        known = (self._known[kind].get(match[0]) for kind in _WORDS if kind in self._known)
        return next(filter(None, known), None) or self._name("host", match[0])

    def _home(self, match: re.Match[str]) -> str:
        return match[0].removesuffix(match[1]) + self._name("user", match[1])

    def _byte2(self, kind: str, text: str) -> str:
        number = self._number(kind, text)
        return f"{number >> 8 & 255:02x}:{number & 255:02x}"

    def _uuid(self, match: re.Match[str]) -> str:
        return f"00000000-0000-4000-8000-{self._number('uuid', match[0].lower()):012x}"

    def _gpu(self, match: re.Match[str]) -> str:
        """Stand in for a UUID, or for the beginning of one, as CUDA_VISIBLE_DEVICES takes it."""
        text = match[0]
        known = self._known.setdefault("gpu", {})
        likes = [uuid for uuid in known if uuid.startswith(text)]
        if len(likes) > 1:  # it names several, and shall go on doing so
            return text[:4]
        uuid = likes[0] if likes else text
        if uuid not in known:
            first = f"{len(known) % 16:x}{len(known) // 16:x}"  # told apart from the first digit on
            known[uuid] = f"{text[:4]}{first}000000-0000-4000-8000-000000000000"[: len(uuid)]
        return known[uuid][: len(text)]

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        number = self._number(f"ipv{address.version}", str(address))
        if address.version == 6:
            return f"2001:db8::{number:x}"
        return f"198.18.{number >> 8 & 255}.{number & 255}"  # for benchmarks (RFC 2544)

    def _key(self, text: str) -> str:
        fingerprint, _, owner = text.partition(" ")
        public = _public(owner.rpartition("@")[2].removesuffix(">"))
        return text if public or not owner else f"{fingerprint} {GONE}"

    def _argument(self, text: str) -> str:
        option, equals, given = text.partition("=") if text.startswith("-") else ("", "", text)
        if text.startswith("-") and not equals:
            return text
        kept = given.startswith("/") or _NUMBER.fullmatch(given) or _GPU.match(given)
        return f"{option}{equals}{self._scrub(given) if kept else GONE}"

    def _cmdline(self, text: str) -> str:
        keeps = re.compile("|".join(f"(?:{pattern})" for pattern in table().keep_cmdline))

        def parameter(word: str) -> str:
            name, equals, _value = word.partition("=")
            if not equals:
                return word if _FLAG.fullmatch(word) else GONE
            return word if keeps.fullmatch(name) else f"{name}={GONE}"

        of_kernel, dashes, of_init = text.partition(" -- ")
        kept = " ".join(parameter(word) for word in of_kernel.split(" "))
        return f"{kept}{dashes}{GONE}" if of_init else kept

    def _log_line(self, text: str) -> str:
        kept = any(re.search(pattern, text) for pattern in table().keep_log)
        return self._scrub(text) if kept else GONE
