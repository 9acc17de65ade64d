"""Words for messages."""


def several(number: int, noun: str) -> str:
    """Count things in a sentence: 1 pair, 2 pairs, 3 processes."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Put a time in its largest fitting unit: 90 s, 5 min, 3 h, 2 days."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
