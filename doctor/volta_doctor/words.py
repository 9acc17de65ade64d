"""Words for messages."""


def several(number: int, noun: str) -> str:
    """Count things in a sentence: 1 pair, 2 pairs, 3 processes."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number} {noun if number == 1 else plural}"
