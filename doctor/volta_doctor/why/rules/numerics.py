"""Answers that are no words: float16 that overflows, or an attention backend that gives NaN."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule
from volta_doctor.why.vocabulary import FLAGS, GARBAGE

# What is left where all scores are NaN: token 0, in most vocabularies "!" (twelve of them are no
# emphasis), in Gemma's <pad>, in Llama's <unk>.
_BANGS = re.compile(r"!{12,}|(?:<pad>\s?){6,}|(?:\[PAD\d*\]\s?){6,}|(?:<unk>\s?){6,}", FLAGS)
_BANNER = re.compile(r"!!\s*(?:WARNING|ERROR|ATTENTION|NOTE)\s*!!", FLAGS)
_ANSWER = re.compile(
    r"output|generated|content|response|answer|reply|returns?\b|result|回答|输出|感叹号",
    FLAGS,
)
# Values that are none, but for gradient norms of a training, which recovers from them.
_NAN = re.compile(
    r"\bisnan\b|(?<!grad_norm': )(?<!grad_norm=)\bNaNs?\b(?! ?(?:err|loss scale))"
    r"|\(near\) NaN|\bnan, ?nan\b|\+/-Inf\b"
    r"|\b(?:std|mean|abs_?max|amax|max|norm|features?|hidden[_ ]states?|activations?|logits)\b"
    r"[^\n]{0,40}[=:] ?[+-]?inf\b",
    FLAGS,
)
# That values are NaN, and not merely the word: a printed tensor, a sum, somebody's sentence.
_IS_NAN = re.compile(
    r"\bnan, ?nan\b|[=:] ?tensor\(nan|(?<!grad_norm')[=:] ?-?nan\b|\bisnan\b.*\bTrue\b"
    r"|\(near\) NaN|出现 ?nan"
    r"|\b(?:is|are|be|to|all|only|as|contains?|ha(?:s|ve)|becom\w+|became|turn\w*|goes|g[eo]t"
    r"|gives?|gave|return\w*|produc\w+|output\w*|yield\w*|generat\w+|start\w*|with|caus\w+)"
    r" (?:\w+ ){0,2}NaNs?\b"
    r"|\bNaNs? (?:in|at|after|from|values?|outputs?|logits|activations?|detected|appears?)\b",
    FLAGS,
)
_REQUEST = re.compile(r"Received request|prompt[=:]|\"content\":", FLAGS)
_MODEL = re.compile(
    r"torch|tensor|logits|hidden[_ ]state|activation|layer|attention|inference|vllm|sglang|llama"
    r"|qwen",
    FLAGS,
)
_HALF = re.compile(r"float16|\bfp16\b|dtype[= ]half|\bhalf\b|--dtype half", FLAGS)
_BROAD = re.compile(r"dtype[=: '\"]{1,3}(?:torch\.)?(?:bfloat16|float32|bf16)", FLAGS)
_FLASH_V100 = re.compile(r"flash[-_]attn[-_]v100|flash-attention-v100|use-flash-attention", FLAGS)
_BACKEND = re.compile(
    r"\b(FLASH_ATTN(?:_V100)?|TRITON_ATTN|FLASHINFER|XFORMERS|FLEX_ATTENTION|TORCH_SDPA|SDPA|eager)\b"
)
_SOUND = re.compile(
    r"\bFalse\b|\bworks?\b|\bfine\b|\bcorrect(?:ly)?\b|\bcoherent\b|\bnormal\b|\bOK\b|正常|没有问题"
    r"|finished successfully|without .{0,30}(?:success|problem|NaN)",
    FLAGS,
)


def _bangs(case: Case) -> list[Evidence]:
    return [] if case.lines(_BANNER, 1) else case.lines(_BANGS)


def _token(seen: Evidence) -> str:
    match = _BANGS.search(seen.text)
    return match[0][0] if match and match[0][0] == "!" else "padding"


@rule("fp16-overflow")
def exclamation_marks(case: Case, row: Row) -> Iterator[Finding]:
    """An answer of "!" alone, or NaN, in float16."""
    bangs, half = _bangs(case), case.lines(_HALF, 1)
    nan = [seen for seen in case.lines(_IS_NAN, 4) if not _REQUEST.search(seen.text)][:1]
    on_volta = case.card == "volta"
    if bangs and (half or on_volta) and (nan or case.lines(_ANSWER, 1)):
        finding = row.fail(
            f"The answer is one token alone ({_token(bangs[0])}): the scores of all are NaN.",
            *bangs,
            *nan,
        )
        yield (
            finding
            if nan and half
            else likely(finding, "the values inside the model are not shown")
        )
    elif (
        nan
        and half
        and case.lines(_MODEL, 1)
        and not case.lines(_FLASH_V100, 1)
        and not case.lines(_BROAD, 1)
    ):
        yield likely(
            row.fail("Values are NaN, and the model runs in float16.", *nan, *half),
            "which layer overflows is not shown",
        )


@rule("attn-backend-nan")
def backend_at_fault(case: Case, row: Row) -> Iterator[Finding]:
    """NaN or no words with one attention backend, and sound values with another."""
    wrong = [*case.lines(_NAN), *case.lines(GARBAGE)]
    if not wrong:
        return
    v100 = case.lines(_FLASH_V100)
    names = {match[1] for match, _ in case.matching(_BACKEND)}
    compared = (len(names) > 1 or v100) and case.lines(_SOUND, 1)
    if compared:
        which = "FLASH_ATTN_V100" if v100 else " or ".join(sorted(names))
        seen = dict.fromkeys([*v100[:1], *wrong[:2], *compared])
        yield likely(
            row.fail(
                f"With one attention backend the values are wrong ({which}), not with another.",
                *seen,
            ),
            "the text compares them itself; the backend's release is not known to be faulty",
        )
    elif v100:
        yield possible(
            row.fail(
                "FLASH_ATTN_V100 is in use, and the output is NaN or no words.",
                *dict.fromkeys([*v100[:1], *wrong[:2]]),
            ),
            "another backend was not tried; float16 that overflows looks the same",
        )
