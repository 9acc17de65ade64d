"""Are the files whole, and of one model? What the reader of checkpoints found, told by check."""

from msgspec.structs import replace

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight.checks._faults import faults, findings, seen
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import several
from volta_runtime.checkpoint.index import INDEX

Findings = Finding | list[Finding]


@model_check("lfs-pointer")
def pointers(subject: Subject, row: Row) -> Findings:
    """A clone without git-lfs has some 130 bytes in the place of each large file."""
    files = several(len(subject.checkpoint.contents.files), "file")
    return findings(subject, row, f"{files}, none of which is a pointer")


@model_check("st-header")
def safetensors(subject: Subject, row: Row) -> Findings:
    """Engines read these headers first, and tell less of what is wrong."""
    if subject.checkpoint.contents.kind != "safetensors":
        return row.skip(_other(subject, "safetensors"))
    return findings(subject, row)


@model_check("gguf-header")
def gguf(subject: Subject, row: Row) -> Findings:
    """llama.cpp refuses such a file after minutes, or reads beyond its end."""
    if subject.checkpoint.contents.kind != "gguf":
        return row.skip(_other(subject, "GGUF"))
    return findings(subject, row)


@model_check("st-index")
def index(subject: Subject, row: Row) -> Findings:
    """A tensor that is nowhere is left as the engine's memory happened to be."""
    contents = subject.checkpoint.contents
    if contents.kind not in ("safetensors", "index"):
        return row.skip(_other(subject, "safetensors"))
    if contents.kind == "index":  # not downloaded yet: no fault, and nothing to be sure of
        told = faults(subject, row)
        return [replace(f, status=Status.UNKNOWN) if f.subject == INDEX else f for f in told]
    where = "each where the index says" if contents.index else "and no index is needed"
    return faults(subject, row) or row.ok(f"{seen(subject)}, {where}.")


@model_check("shard-mixed-revisions")
def revisions(subject: Subject, row: Row) -> Findings:
    """Shards of two revisions have the right names and shapes, and make a model of neither."""
    return findings(
        subject, row, "nothing in names, links or download notes tells of two revisions"
    )


@model_check("pickle-weights")
def pickles(subject: Subject, row: Row) -> Findings:
    """Unpickling runs whatever the file's author wrote."""
    return findings(subject, row, "no pickle is among the files")


@model_check("config-json")
def configs(subject: Subject, row: Row) -> Findings:
    """Every engine begins with these."""
    contents = subject.checkpoint.contents
    if contents.kind == "gguf" and not contents.configs:
        return row.skip("A GGUF file has its config inside.")
    return findings(subject, row, ", ".join(contents.configs))


def _other(subject: Subject, wanted: str) -> str:
    held = {"safetensors": "in safetensors", "gguf": "in GGUF", "pickle": "pickled"}
    kind = subject.checkpoint.contents.kind
    return f"No file of {wanted}: the weights are {held.get(kind, 'not here yet')}."
