"""`nvidia-smi dmon`: the newest sample of each GPU."""

from collections.abc import Iterator

from volta_doctor.logs.parts import Part
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._gpus import Reading, part
from volta_doctor.logs.text import Line, Text

_PATHS = {
    "pwr": ("power_readings/power_draw", "W"),
    "gtemp": ("temperature/gpu_temp", "C"),
    "temp": ("temperature/gpu_temp", "C"),
    "mtemp": ("temperature/memory_temp", "C"),
    "sm": ("utilization/gpu_util", "%"),
    "mem": ("utilization/memory_util", "%"),
    "mclk": ("clocks/mem_clock", "MHz"),
    "pclk": ("clocks/sm_clock", "MHz"),
}


@reader("# gpu ", "# gpu\t", after=60)
def dmon(text: Text) -> Iterator[Part]:
    """Yield power, heat, load and clocks."""
    fields: list[str] = []
    newest: dict[int, tuple[list[str], list[str], Line]] = {}
    for line in text.lines:
        words = line.body.split()
        if words[:2] == ["#", "gpu"]:
            fields = [word.lower() for word in words[1:]]
        elif fields and len(words) == len(fields) and words[0].isdigit():
            newest[int(words[0])] = (fields, words, line)
    if newest:
        yield part(text, {index: list(_readings(*row)) for index, row in newest.items()})


def _readings(fields: list[str], words: list[str], line: Line) -> Iterator[Reading]:
    for field, word in zip(fields[1:], words[1:], strict=True):
        if field in _PATHS and word.isdigit():
            path, unit = _PATHS[field]
            yield Reading(path, f"{word} {unit}", line)
