"""NCCL's configuration files, which set its variables where the environment does not."""

from volta_doctor.probe import Probe

_OF_SYSTEM = "/etc/nccl.conf"
_OF_USER = ".nccl.conf"


def find(
    probe: Probe, env: dict[str, str], home: str | None, root: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Return the files in effect and the variables that they set (NCCL manual, "Environment").

    The user's file outweighs the system's. `root` stands before the paths of a server with a file
    system of its own. Raises CannotLook for a file that may not be read.
    """
    own = env.get("NCCL_CONF_FILE") or (f"{home}/{_OF_USER}" if home else "")
    files: list[str] = []
    found: dict[str, str] = {}
    for path in (own, _OF_SYSTEM):
        text = probe.text_or_none(root + path) if path else None
        if text is not None:
            files.append(root + path)
            found = _parse(text) | found
    return files, found


def _parse(text: str) -> dict[str, str]:
    lines = (line.split("#", 1)[0].partition("=") for line in text.splitlines())
    return {
        name.strip(): value.strip()
        for name, equals, value in lines
        if equals and name.startswith("NCCL_")
    }
