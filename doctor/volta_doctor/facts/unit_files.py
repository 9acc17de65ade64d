"""systemd's unit files with their drop-ins, read without asking systemd."""

import os
import re
import shlex
from typing import NamedTuple

from volta_doctor.probe import CannotLook, Probe

# In order of precedence: systemd.unit(5), "Unit File Load Path".
SYSTEM = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_USER = ("/etc/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user")
_OF_HOME = ".config/systemd/user"


class Account(NamedTuple):
    """A line of /etc/passwd."""

    name: str
    uid: int
    home: str


class UnitFile(NamedTuple):
    """A service: its fragment's path, its drop-ins and what they say.

    `settings` maps a section and key to all values, in order; an empty value has emptied the list
    as it does for systemd. `home` is set for a unit of that user's own manager.
    """

    name: str
    path: str
    settings: dict[tuple[str, str], list[str]]
    drop_ins: list[str]
    account: Account | None = None

    def all(self, key: str, section: str = "Service") -> list[str]:
        """Return every value of a list setting."""
        return self.settings.get((section, key), [])

    def last(self, key: str, section: str = "Service") -> str | None:
        """Return the value that holds of a setting with one value."""
        return next(iter(self.all(key, section)[-1:]), None)


def parse_into(settings: dict[tuple[str, str], list[str]], text: str) -> None:
    """Add a unit file's settings to those of the files before it."""
    section = ""
    # A comment may stand between continued lines (systemd.syntax(7)).
    text = re.sub(r"^\s*[#;].*\n?", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, value = (part.strip() for part in line.split("=", 1))
            values = settings.setdefault((section, key), [])
            if value:
                values.append(value)
            else:
                values.clear()


def accounts(probe: Probe) -> dict[int, Account]:
    """Return the accounts of /etc/passwd by user id; users of a directory service are not in it."""
    found: dict[int, Account] = {}
    for line in (probe.text_or_none("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[2].isdigit():
            found.setdefault(int(fields[2]), Account(fields[0], int(fields[2]), fields[5]))
    return found


def _names(probe: Probe, directories: list[str]) -> list[str]:
    """Return the services of these directories, and the instances that a target wants."""
    names: dict[str, None] = {}
    for directory in directories:
        try:
            entries = probe.names(directory)
        except CannotLook:
            continue  # another user's
        for entry in entries:
            if entry.endswith(".service") and not entry.endswith("@.service"):
                names[entry] = None
            elif entry.endswith((".wants", ".requires")):
                wanted = probe.names(f"{directory}/{entry}")
                names |= {w: None for w in wanted if re.fullmatch(r".+@.+\.service", w)}
    return list(names)


def _first(probe: Probe, directories: list[str], name: str) -> str | None:
    """Return the path of the unit's fragment, that of its template for an instance."""
    template = re.sub(r"@.+\.service$", "@.service", name)
    for candidate in dict.fromkeys((name, template)):
        for directory in directories:
            path = f"{directory}/{candidate}"
            if probe.exists(path):
                return path
    return None


def _drop_ins(probe: Probe, directories: list[str], name: str) -> list[str]:
    """Return the unit's drop-ins in the order in which they apply."""
    stem = name.removesuffix(".service")
    owners = ["service"]
    owners += [f"{stem[: match.end()]}.service" for match in re.finditer("-", stem)]
    owners += [re.sub(r"@.+$", "@", stem) + ".service", name]
    found: dict[str, str] = {}
    for owner in reversed(list(dict.fromkeys(owners))):  # the most specific one wins
        for directory in directories:
            for file in probe.names(f"{directory}/{owner}.d"):
                if file.endswith(".conf"):
                    found.setdefault(file, f"{directory}/{owner}.d/{file}")
    return [found[file] for file in sorted(found)]


def read_unit(
    probe: Probe, directories: list[str], name: str, account: Account | None = None
) -> UnitFile | None:
    """Read one service; None where there is no such file, it is masked or it may not be read.

    An alias, a link to a service of another name, is that service.
    """
    settings: dict[tuple[str, str], list[str]] = {}
    try:
        path = _first(probe, directories, name)
        target = probe.link(path) if path else None
        if path is None or target == "/dev/null":
            return None
        real = (target or path).rsplit("/", 1)[-1]
        if target and real not in (name, path.rsplit("/", 1)[-1]):
            return read_unit(probe, directories, real, account)
        drop_ins = _drop_ins(probe, directories, name)
        for file in (path, *drop_ins):
            parse_into(settings, probe.text(file))
    except CannotLook:
        return None
    return UnitFile(name, path, settings, drop_ins, account)


def read_units(probe: Probe) -> list[UnitFile]:
    """Read the services of the system and of every user who has a session or lingers."""
    known = accounts(probe)
    users = {int(uid) for uid in probe.names("/run/user") if uid.isdigit()}
    scopes: list[tuple[list[str], Account | None]] = [(list(SYSTEM), None)]
    homes = {known[uid].home: known[uid] for uid in sorted(users) if uid in known}
    own = probe.env.get("HOME")
    if own and own not in homes:
        homes[own] = Account(probe.env.get("USER", ""), os.geteuid(), own)
    scopes += [([f"{home}/{_OF_HOME}", *_USER], account) for home, account in homes.items()]
    units = [
        read_unit(probe, directories, name, account)
        for directories, account in scopes
        for name in _names(probe, directories)
    ]
    return list({(unit.name, unit.account): unit for unit in units if unit}.values())


def expand(unit: UnitFile, text: str) -> str:
    """Put in the specifiers that command lines use (systemd.unit(5), "Specifiers")."""
    stem = unit.name.removesuffix(".service")
    prefix, _, instance = stem.partition("@")
    account = unit.account
    home = account.home if account else "/root"
    values = {
        "n": unit.name,
        "N": stem,
        "p": prefix,
        "i": instance,
        "I": instance.replace("-", "/"),
        "h": home,
        "u": account.name if account else "root",
        "U": str(account.uid if account else 0),
        "t": f"/run/user/{account.uid}" if account else "/run",
        "S": f"{home}/.local/state" if account else "/var/lib",
        "C": f"{home}/.cache" if account else "/var/cache",
        "E": f"{home}/.config" if account else "/etc",
        "%": "%",
    }
    return re.sub(r"%(.)", lambda match: values.get(match[1], match[0]), text)


def split(text: str) -> list[str]:
    """Split a line into words, quotes taken off; a stray quote makes it split at blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def environment_file(text: str) -> dict[str, str]:
    """Parse an EnvironmentFile=: assignments by line, comments, quotes."""
    found: dict[str, str] = {}
    for line in re.sub(r"\\\n", "", text).splitlines():
        line = line.strip().removeprefix("export ")
        if line and line[0] not in "#;" and "=" in line:
            key, value = line.split("=", 1)
            found[key.strip()] = " ".join(split(value)) if value[:1] in "'\"" else value.strip()
    return found


def environment(probe: Probe, unit: UnitFile) -> dict[str, str]:
    """Return what the unit sets for its processes. Raises CannotLook for a file it may not read."""
    found: dict[str, str] = {}
    for line in unit.all("Environment"):
        for word in split(expand(unit, line)):
            key, _, value = word.partition("=")
            found[key] = value
    for path in unit.all("EnvironmentFile"):
        optional, path = path.startswith("-"), expand(unit, path.removeprefix("-"))
        if not optional or probe.exists(path):
            found |= environment_file(probe.text(path))
    for word in (word for line in unit.all("UnsetEnvironment") for word in split(line)):
        found.pop(word.split("=")[0], None)
    return found


def exec_start(unit: UnitFile, env: dict[str, str]) -> list[list[str]]:
    """Return the command lines that the unit starts, variables put in."""
    commands = []
    for line in unit.all("ExecStart"):
        words: list[str] = []
        for word in split(expand(unit, line.lstrip("@-:+!|"))):
            if re.fullmatch(r"\$\w+", word):  # $NAME alone is split into words, ${NAME} is not
                words += env.get(word[1:], "").split()
            else:
                text = re.sub(r"\$\{(\w+)\}", lambda match: env.get(match[1], ""), word)
                words.append(text.replace("$$", "$"))
        commands.append(words)
    return commands
