"""The checks of a checkpoint: rows as those of a host's, whose needs are parts of a Subject."""

from functools import cache
from importlib.resources import files

import msgspec

from volta_doctor.catalog import Row, load

# Parts of preflight.subject.Subject that a row may need. Of the checkpoint: modules are what
# headers say of tensors, the architecture is what config.json says, or GGUF's metadata.
NEEDS = (
    "checkpoint",
    "modules",
    "architecture",
    "scales",
    "engine",
    "serve_flags",
    "cards",
    "host",
)


@cache
def model_checks() -> dict[str, Row]:
    """Return all rows by id, file by file. Raises ValueError naming the file and its fault."""
    names = sorted(path.name for path in files(__name__).iterdir() if path.name.endswith(".yaml"))
    rows = [
        msgspec.structs.replace(row, area=name.removesuffix(".yaml"))
        for name in names
        for row in load(f"model/{name}", list[Row])
    ]
    ids = [row.id for row in rows]
    if twice := sorted({check_id for check_id in ids if ids.count(check_id) > 1}):
        raise ValueError(f"catalog/model: ids given twice: {', '.join(twice)}")
    if strange := sorted({need for row in rows for need in row.needs} - {*NEEDS}):
        raise ValueError(f"catalog/model: unknown needs: {', '.join(strange)}")
    return {row.id: row for row in rows}
