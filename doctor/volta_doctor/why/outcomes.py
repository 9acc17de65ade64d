"""Reads from a sentence whether what somebody tried has helped."""

import re

from volta_doctor.why.vocabulary import FLAGS, HANGS, SLOW

# What may be gone.
_FAULT = (
    r"(?:hang\w*|stalls?|stuck|xids?|nans?|garbage|gibberish|errors?|problems?|issues?|crash\w*"
    r"|deadlocks?)"
)
# A fault that is no more, before the words of failure in it are read as such.
_GOOD = (
    rf"(?:\bno|\bwithout|\bnot|n't)(?: (?:longer|more|further|any|a))*? {_FAULT}\b"
    rf"|\b{_FAULT}(?: (?:is|are|was|were|has|have))? (?:now )?"
    r"(?:gone|goes away|went away|disappear\w*|vanish\w*|solved|fixed|resolved)\b"
)
# It did not help, or goes wrong.
_BAD = (
    r"(?:\bno|\bnot|n't|\bnone|\bnothing|\bneither|\bnever)(?: \w+){0,2}? (?:help\w*|work\w*"
    r"|fix\w*|solv\w*|resolv\w*|chang\w*|start\w*|finish\w*|complet\w*|enough|effect|difference"
    r"|luck|better|improvement|success)\b"
    r"|\bno (?:effect|help|difference|change|luck|improvement)\b|\bstill\b|\buseless\b|\bin vain\b"
    r"|\bsame (?:error|problem|issue|hang|result|thing|behaviou?r|output)\b"
    r"|\bfail(?:s|ed)?\b|\bcrash(?:es|ed)?\b|\bsegfaults?\b|\bgarbage\b|\bgibberish\b|\bNaNs?\b"
    rf"|没用|无效|不行|没有(?:效果|用|帮助)|仍然|依然|依旧|还是|{SLOW.pattern}|{HANGS.pattern}"
)
# It runs, or gives figures.
_FINE = (
    r"\b(?:works?|worked|working|fine|normal(?:ly)?|ok(?:ay)?|complete[sd]?|finish(?:es|ed)"
    r"|pass(?:es|ed)|starts|started|success\w*|succeeds?|solve[sd]?|fix(?:e[sd])?|resolve[sd]?"
    r"|help(?:s|ed)|cure[sd]?|lets|loads|loaded|ran|runs?(?! out)|comes up|came up"
    r"|gets (?:past|through|further|it)|ma(?:kes|de) it|goes away|correct(?:ly)?|coherent"
    r"|sensible|readable|sane|as (?:it should|expected)|recovers|serves|good|gone"
    r"|captur\w+ (?:takes |in |done|\d)|\d+(?:\.\d+)? ?(?:tok(?:en)?s?|t)/s|[1-9][\d.]* ?GB/s)"
    r"|正常|解决|就好|可以|就能|有效|没问题|没有问题|成功"
)
_OUTCOME = re.compile(f"(?P<good>{_GOOD})|(?P<bad>{_BAD})|(?P<fine>{_FINE})", FLAGS)
_ADVICE = re.compile(r"\b(?:may|might|should|could|would|usually|often|maybe|to) (?:\w+ )?$", FLAGS)
_END = re.compile(r"[.;!?](?=\s|$)|[。；！？]")
# Between an outcome and the switch behind it: the outcome is that of the switch.
_JOINED = re.compile(
    r"\b(?:with|using|via|by|after|once|when|setting|adding|under|despite|even|unless|until|without"
    r"|thanks to)\b|[:(=>]|加|用|设",
    FLAGS,
)
# Right before the switch: what follows is told of its absence.
_WITHOUT = re.compile(
    r"(?:\b(?:without|unless|w/o|until|remov\w+|dropp\w+|unsett?\w*)|不加|没有|除非|去掉)"
    r"(?: (?:I|we|you|the|set|setting|add|adding|using|passing))*\W*$",
    FLAGS,
)
_REACH, _BACK = 100, 70  # characters around a switch in which its outcome stands (ours)


def outcome_of(before: str, after: str) -> bool | None:
    """Read the outcome of a switch from the text around it; None where there is none."""
    end = _END.search(after)
    sentence = after[: end.start()] if end else after
    if end and end[0] in "?？":
        return None
    sign = _is_good(_OUTCOME.search(sentence[:_REACH]))
    if sign is None:
        own = _END.split(before)[-1][-_BACK:]
        found = list(_OUTCOME.finditer(own))
        if found and _JOINED.search(own[found[-1].end() :]):
            sign = _is_good(found[-1])
    if sign is None and end:
        sign = _is_good(_OUTCOME.match(after[end.end() :].lstrip(" \"'`")[:_REACH]))
    return (not sign if _WITHOUT.search(before) else sign) if sign is not None else None


def _is_good(found: re.Match[str] | None) -> bool | None:
    if not found or _ADVICE.search(found.string[: found.start()]):
        return None
    return not found["bad"]
