"""Do the tokenizer, its special tokens and its chat template fit the weights?"""

from volta_doctor.catalog import Row
from volta_doctor.facts.model import Missing
from volta_doctor.findings import Finding
from volta_doctor.preflight.checks._faults import faults, findings
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import few
from volta_runtime.checkpoint.template import chats

Findings = Finding | list[Finding]


@model_check("tokenizer-vocab")
def vocabulary(subject: Subject, row: Row) -> Findings:
    """An id without a row reads beyond the embedding: an illegal address, or another's memory."""
    if found := faults(subject, row):
        return found
    tokenizer = subject.checkpoint.tokenizer
    if tokenizer.vocabulary is None:
        other = f": {tokenizer.other} is of a kind that is not read here" if tokenizer.other else ""
        raise Missing(f"Nothing lists the tokens{other}.")
    size, rows = tokenizer.vocabulary.size, tokenizer.rows
    rows = rows or subject.checkpoint.architecture.vocab_size
    if rows is None:
        raise Missing("Neither a header nor the config tells how many rows the embedding has.")
    return row.ok(f"{size:,} tokens, {rows:,} rows.")


@model_check("chat-template")
def chat(subject: Subject, row: Row) -> Findings:
    """Without one, requests for chats are refused; with a broken one they fail each time."""
    template = subject.checkpoint.tokenizer.template
    if template is None and not faults(subject, row):
        a = subject.checkpoint.architecture
        if not chats(a):
            return row.skip(f"{few(a.names) or a.model_type} is no model to chat with.")
        raise Missing("The weights lie alone, or are not downloaded yet: no template to look at.")
    return findings(subject, row, f"{template.file.name} is sound Jinja" if template else "")
