"""logind's RemoveIPC=: whether a user's shared memory goes when their last session ends."""

import re

from volta_doctor.probe import Probe

# In order of precedence (logind.conf(5)).
_BASES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_PROGRAMS = ("/usr/lib/systemd/systemd-logind", "/lib/systemd/systemd-logind")
_YES, _NO = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")


def drop_ins(probe: Probe, directories: list[str]) -> list[str]:
    """Return the .conf files of drop-in directories in the order in which they apply.

    Of files with one name only that of the first directory counts (systemd.syntax(7)); a minimal
    Debian has a link there that leads nowhere.
    """
    found: dict[str, str] = {}
    for directory in directories:
        for name in probe.names(directory):
            if name.endswith(".conf"):
                found.setdefault(name, f"{directory}/{name}")
    return [found[name] for name in sorted(found) if probe.exists(found[name])]


def find_remove_ipc(probe: Probe) -> tuple[bool, str]:
    """Return the setting and where it stands.

    The shipped file names the built-in default in a comment: Red Hat's is no, all others' is yes.
    """
    if not any(probe.exists(program) for program in _PROGRAMS):
        return False, "systemd-logind is not installed"
    main = next((f"{b}/logind.conf" for b in _BASES if probe.exists(f"{b}/logind.conf")), None)
    held, source = True, "logind's default"
    files = [main] if main else []
    for file in files + drop_ins(probe, [f"{base}/logind.conf.d" for base in _BASES]):
        text = probe.text(file)
        comment = re.search(r"^#\s*RemoveIPC=(\w+)", text, re.MULTILINE) if file == main else None
        given = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)\s*$", text, re.MULTILINE)
        for word in [*([comment[1]] if comment else []), *given]:
            if word.lower() in (*_YES, *_NO):
                held, source = word.lower() in _YES, file
    return held, source
