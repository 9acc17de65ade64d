"""Line plots over a logarithmic axis, as SVG, side by side."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Series = Mapping[str, Sequence[tuple[float, float]]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 390, 300, 62, 34, 44, 130
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd",
    "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
)  # fmt: skip
_TICKS = 5


def svg(panels: Mapping[str, Series], x_label: str, y_label: str) -> str:
    """Panels by title, each with lines by name; x above 0, y from 0 up, on the same axes."""
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    points = [point for series in panels.values() for line in series.values() for point in line]
    top = max([1.0, *(y for _, y in points)])
    low, high = (math.log2(edge(x for x, _ in points)) for edge in (min, max))

    def at(x: float, y: float) -> tuple[float, float]:
        part = (math.log2(x) - low) / (high - low or 1)
        across = _LEFT + part * (_WIDTH - _LEFT - 16)
        return across, _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - _TOP)

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'

    middle = 'text-anchor="middle"'
    parts = []
    for i, (title, series) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({i * _WIDTH},0)">')
        parts.append(text(_WIDTH / 2, 20, title, f'{middle} font-weight="bold"'))
        for tick in range(_TICKS + 1):
            y = top * tick / _TICKS
            (left, height), (right, _) = at(2**low, y), at(2**high, y)
            parts.append(f'<path d="M{left:.1f} {height:.1f}H{right:.1f}" stroke="#ddd"/>')
            parts.append(text(left - 6, height + 4, f"{y:.0%}", 'text-anchor="end"'))
        parts += [
            text(at(x, 0)[0], _HEIGHT - _BOTTOM + 16, f"{x:g}", middle)
            for x in sorted({x for line in series.values() for x, _ in line})
        ]
        parts.append(text(_WIDTH / 2, _HEIGHT - 8, x_label, middle))
        for name, line in series.items():
            path = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in line)
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
        parts.append("</g>")
    right = len(panels) * _WIDTH
    for i, name in enumerate(names):
        y = _TOP + 18 * i
        colour = _COLOURS[i % len(_COLOURS)]
        parts.append(f'<path d="M{right} {y}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(right + 24, y + 4, name))
    parts.append(
        text(14, _HEIGHT / 2, y_label, f'{middle} transform="rotate(-90 14 {_HEIGHT / 2})"')
    )
    width = right + _LEGEND
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
