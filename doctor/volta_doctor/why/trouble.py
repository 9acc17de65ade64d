"""The words by which people and programs say that something stands still, or answers nonsense."""

import re

FLAGS = re.IGNORECASE | re.ASCII  # a word also ends where Chinese begins
HANGS = re.compile(
    r"\b(?:hangs?|hanging|hung|stuck|deadlock(?:s|ed)?|freez(?:es?|ing)|frozen|spins? forever"
    r"|never (?:returns|ends|prints|finish(?:es)?|complet(?:es|ed)|converges)"
    r"|(?:prints|prints out|outputs?) nothing (?:more|else)|no (?:further )?output"
    r"|does(?: not|n't) (?:return|finish|start))\b"
    r"|\bstops? (?:responding|answering|generating)\b"
    r"|\bno (?:more |further )?tokens? (?:come|is|are)"
    r"|卡住|卡死|挂起|一直没有反应|没有响应",
    FLAGS,
)
# Also one letter that goes on, and a syllable that is said again and again.
GARBAGE = re.compile(
    r"incoherent|gibberish|garbage|garbled|nonsense|\bNUL\b|Unicode NULL|(?:\\u0000|\\x00|\x00){2,}"
    r"|乱码|!{12,}|\b([a-wyz])\1{15,}\b|\b(([a-z])(?!\3)[a-z]{1,11})\2{4,}\b|[?@]{16,}",
    FLAGS,
)
SLOW = re.compile(r"(?<![\d.])0\.\d+ ?(?:tok(?:en)?s?|t) ?(?:/|per) ?s", FLAGS)
