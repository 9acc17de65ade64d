"""Global scales of parts that engines join to one layer."""

from dataclasses import dataclass

from volta_doctor.catalog import Row
from volta_doctor.facts.model import Missing
from volta_doctor.findings import Evidence, Finding
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.scale_tensors import Scale, in_nvfp4, loaders, scales_of
from volta_doctor.preflight.subject import Subject
from volta_doctor.scale_limits import APART, spread
from volta_doctor.words import few, several
from volta_runtime.checkpoint.fused import fused


@dataclass(frozen=True)
class Layer:
    """The global scales of a fused layer's parts."""

    parts: tuple[tuple[Scale, float], ...]

    @property
    def ratio(self) -> float:
        """The largest over the smallest."""
        return spread(value for _, value in self.parts)

    @property
    def subject(self) -> str:
        """The first part's tensor."""
        return self.parts[0][0].info.name

    def evidence(self) -> list[Evidence]:
        """Each part's value, where it stands."""
        return [
            Evidence(str(scale.info.file), f"{scale.info.name} = {value:.6g}")
            for scale, value in self.parts
        ]

    def told(self) -> str:
        """Name the parts with their values."""
        names = [
            f"{scale.module.name.rpartition('.')[2]} {value:.4g}" for scale, value in self.parts
        ]
        return f"{', '.join(names)} (a factor of {self.ratio:.2f})"


def _layers(subject: Subject) -> list[Layer]:
    """The fused layers with two or more positive global scales; Missing where none was read."""
    held = {s.module.name: s for s in scales_of(subject, "global") if in_nvfp4(s.module)}
    values = {
        name: scale.values.value
        for name, scale in held.items()
        if scale.values and scale.values.value is not None and scale.values.value > 0
    }
    layers = []
    for names in fused(held):
        parts = tuple((held[name], values[name]) for name in names if name in values)
        if len(parts) > 1:
            layers.append(Layer(parts))
    if not layers and any(True for _ in fused(held)):
        raise Missing("No two global scales of one fused layer could be read; see nvfp4-global.")
    return layers


def _differing(subject: Subject, row: Row) -> tuple[list[Layer], Finding | None]:
    """The layers whose scales differ, the worst first; else what there is to say instead."""
    layers = _layers(subject)
    if not layers:
        return [], row.skip("No fused layer has NVFP4 global scales for its parts.")
    differing = sorted((one for one in layers if one.ratio > 1), key=lambda one: -one.ratio)
    if not differing:
        return [], row.ok(f"Equal in all of {several(len(layers), 'fused layer')}.")
    return differing, None


@model_check("nvfp4-fused")
def shared(subject: Subject, row: Row) -> Finding:
    """Whether the writer gave all parts of a layer one scale, as engines that fuse them hope."""
    differing, other = _differing(subject, row)
    if other:
        return other
    worst = differing[0]
    text = f"The global scales of {several(len(differing), 'fused layer')} differ, most in one with"
    scaling = subject.engine.scaling if subject.engine else None
    make = row.info if scaling and scaling.fused == "apart" else row.warn
    return make(
        f"{text} {worst.told()}.", *worst.evidence(), subject=worst.subject, count=len(differing)
    )


@model_check("fused-globals-differ")
def joined(subject: Subject, row: Row) -> Finding:
    """What the engine makes of it, or those that could be asked."""
    differing, other = _differing(subject, row)
    if other:
        return other
    worst = differing[0]
    layer_format = worst.parts[0][0].module.format
    engines = loaders(subject, layer_format.name if layer_format else "")
    taking = [e.title for e in engines if e.scaling and e.scaling.fused == "maximum"]
    keeping = [e.title for e in engines if e.scaling and e.scaling.fused == "apart"]
    if subject.engine and not (taking or keeping):
        raise Missing(f"How {subject.engine.title} joins global scales that differ is not known.")
    if not taking:
        kept = few(keeping, by=" and ")
        text = f"They differ ({worst.told()} at most), and {kept} keeps each part's own."
        return row.ok(text) if keeping else row.skip("No engine for Volta is known to load it.")
    apart = sum(layer.ratio > APART for layer in differing)
    text = (
        f"{few(taking, by=' and ')} takes the largest global scale for all parts of a layer: the"
        f" others' weights are wrong by up to a factor of {worst.ratio:.2f}. The parts differ in"
        f" {several(len(differing), 'layer')}, by more than 10 % in {apart}."
    )
    if not subject.engine and keeping:
        text += f" {few(keeping, by=' and ')} keeps each part's own."
    make = row.fail if subject.engine and apart else row.warn
    return make(text, *worst.evidence(), subject=worst.subject, count=len(differing))
