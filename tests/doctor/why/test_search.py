"""What is kept of a huge text: whole lines with their numbers, wherever its pieces are cut."""

import pytest

from volta_doctor.logs.search import Search, Word

LINES = [f"line {number} of forty thousand".encode() for number in range(1, 40_001)]
LINES[20_000] = b"a needle here"  # line 20,001


@pytest.mark.parametrize("cut", range(19_990, 20_015))
def test_context_goes_on_in_the_next_piece(cut: int) -> None:
    search = Search([Word("needle", 5)])
    for piece in (LINES[:cut], LINES[cut:]):
        search.take(b"\n".join(piece) + b"\n")
    kept = search.end()
    assert [line for _, line in kept] == [LINES[number - 1] for number, _ in kept]
    near = [number for number, _ in kept if number < 30_000]
    assert near == list(range(20_001 - 8, 20_001 + 5 + 1))
    assert kept[-1][0] == search.last == len(LINES)
