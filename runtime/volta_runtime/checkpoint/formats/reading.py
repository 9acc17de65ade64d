"""A module's tensors held against a row: the weight's shape, its groups, and what does not fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.formats.row import Parameter, Parameters, WeightFormat
from volta_runtime.checkpoint.formats.shapes import Shape, Sizes, Template, template
from volta_runtime.checkpoint.scheme import Scheme

# What a row sees of a module: (parameter, dtype, shape), sorted. Modules alike are read once.
Signature = tuple[tuple[str, str, Shape], ...]

# What stands beside a weight of any format.
BESIDE = frozenset({"bias"})
_WHOLE_NUMBERS = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


@dataclass(frozen=True)
class Reading:
    """A module as a row sees it.

    shape: the weight's logical shape, [N, K] or [experts, N, K], [N] of a norm; None where the
    tensors do not tell it. group: weights that share a scale, (rows, columns): (1, 16), (128, 128),
    (1, 0) for a whole row, (0, 0) for the whole tensor; None without scales. faults: what is wrong
    with the tensors, all of it.
    """

    shape: Shape | None
    group: tuple[int, int] | None
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Misfit:
    """A parameter that is not as its row says; kind: missing, stray, dtype or shape."""

    kind: str
    parameter: str
    check: str
    message: str
    expected: str
    found: str


@dataclass(frozen=True)
class Match:
    """A reading without the names of tensors."""

    shape: Shape | None
    group: tuple[int, int] | None
    misfits: tuple[Misfit, ...]

    @property
    def distance(self) -> tuple[int, int]:
        """How many names and dtypes, and how many shapes, are not the row's."""
        shapes = sum(misfit.kind == "shape" for misfit in self.misfits)
        return len(self.misfits) - shapes, shapes


def read(row: WeightFormat, tensors: Parameters, scheme: Scheme | None = None) -> Reading:
    """Hold a module's tensors against the row of its format.

    Of the scheme counts the group that it declares, where the tensors agree with it.
    """
    if is_buffer(tensors):
        return Reading(tensors["weight"].shape, None, ())
    matched = match(row, signature(tensors), None if scheme is None else scheme.group)
    beside = row.codes.find(tensors) or next(iter(tensors.values()))
    stem = beside.name.removesuffix(row.codes.name)
    if stem == beside.name:  # a tensor that has the module's own name
        stem += "_" if ".experts." in stem else "."
    faults = []
    for misfit in matched.misfits:
        info = tensors.get(misfit.parameter)
        name = f"{stem}{misfit.parameter}" if info is None else info.name
        file = (info or beside).file
        faults.append(
            Fault(misfit.check, misfit.message, file, name, misfit.expected, misfit.found)
        )
    return Reading(matched.shape, matched.group, tuple(faults))


def is_buffer(tensors: Parameters) -> bool:
    """Whether a module is whole numbers alone: a mask or a table, as GPT-NeoX's attention.bias.

    Codes are of two dimensions, or of three with their experts, and named as a weight.
    """
    info = tensors.get("weight")
    if info is None or info.dtype not in _WHOLE_NUMBERS or len(tensors) > 1:
        return False
    named = info.name.endswith("weight") or ".experts." in info.name
    return len(info.shape) not in (2, 3) or not named


def signature(tensors: Parameters) -> Signature:
    """What rows see of these tensors."""
    return tuple(sorted((name, info.dtype, info.shape) for name, info in tensors.items()))


@lru_cache(maxsize=1 << 12)
def match(row: WeightFormat, seen: Signature, group: tuple[int, int] | None) -> Match:
    """Hold a signature against a row, with the group that a config declares or the format's."""
    declared = dict(row.sizes)
    if group is not None:
        declared |= {name: size for name, size in zip("RC", group, strict=True) if name in declared}
        if "G" in declared:
            declared["G"] = group[1]
    if any(size < 1 for size in declared.values()):
        declared = dict(row.sizes)
    first = _Try(row, seen, declared, group).match()
    if not first.misfits or declared == row.sizes:
        return first
    plain = _Try(row, seen, row.sizes, None).match()
    return first if plain.misfits else plain


class _Try:
    """A module held against a row, with the sizes that are known beforehand.

    group: the one that a config declares. It decides between shapes that look alike: of a small
    weight the one scale may be the tensor's, a row's or a block's.
    """

    def __init__(
        self, row: WeightFormat, seen: Signature, sizes: Sizes, group: tuple[int, int] | None
    ) -> None:
        self._row = row
        self._declared = group
        self._seen = {name: (dtype, shape) for name, dtype, shape in seen}
        self._held = {
            parameter.name: name
            for parameter in row.parameters
            for name in (parameter.name, *parameter.also)
            if name in self._seen
        }
        self._sizes = dict(sizes)
        self._fits: dict[str, Template] = {}
        self._open: set[str] = set()  # neither fit nor contradict, for want of another tensor
        self._experts = self._lead()
        self._solve()

    def match(self) -> Match:
        shape = self._shape(self._row.codes)
        if self._row.codes.shapes:
            known = "N" in self._sizes and "K" in self._sizes
            shape = (*self._experts, self._sizes["N"], self._sizes["K"]) if known else None
        return Match(shape, self._group(), (*self._wrong(), *self._strays()))

    def _shape(self, parameter: Parameter) -> Shape | None:
        name = self._held.get(parameter.name)
        return None if name is None else self._seen[name][1]

    def _lead(self) -> Shape:
        """The experts in front, where the codes have one dimension more than the row says."""
        shape = self._shape(self._row.codes)
        ranks = {len(template(text).terms) for text in self._row.codes.shapes}
        return shape[:1] if shape and ranks == {len(shape) - 1} else ()

    def _bare(self, shape: Shape, wanted: Template) -> Shape:
        """A shape without its experts."""
        if not self._experts or shape[:1] != self._experts:
            return shape
        if wanted.names:
            return shape[1:]
        # A number for each expert, whatever its rank.
        return (1,) * len(wanted.terms) if all(size == 1 for size in shape[1:]) else shape

    def _solve(self) -> None:
        """Gather what the shapes tell, until they tell nothing more."""
        known = -1
        while known != len(self._sizes) + len(self._fits):
            known = len(self._sizes) + len(self._fits)
            for parameter in self._row.parameters:
                shape = self._shape(parameter)
                if shape is not None and parameter.name not in self._fits:
                    self._try(parameter, shape)

    def _try(self, parameter: Parameter, shape: Shape) -> None:
        self._open.discard(parameter.name)
        shapes = [template(text) for text in parameter.shapes]
        if parameter.role == "scale" and self._declared is not None:
            shapes.sort(key=lambda wanted: _group(wanted, self._sizes) != self._declared)
        for wanted in shapes:
            told = wanted.solve(self._bare(shape, wanted), self._sizes)
            if told is not None:
                self._sizes |= told
                if wanted.names <= self._sizes.keys():
                    self._fits[parameter.name] = wanted
                else:
                    self._open.add(parameter.name)
                return

    def _group(self) -> tuple[int, int] | None:
        if self._row.group is not None:
            return self._row.group
        scales = (p.name for p in self._row.parameters if p.role == "scale")
        wanted = next((self._fits[name] for name in scales if name in self._fits), None)
        return None if wanted is None else _group(wanted, self._sizes)

    def _wrong(self) -> Iterator[Misfit]:
        for parameter in self._row.parameters:
            dtypes, shapes = "/".join(parameter.dtypes), self._expected(parameter)
            name = self._held.get(parameter.name)
            if name is None:
                if not parameter.optional:
                    message = f"is missing, and {self._row.name} needs it beside the codes"
                    yield Misfit(
                        "missing", parameter.name, parameter.check, message,
                        f"{dtypes} {shapes}".rstrip(), "no such tensor",
                    )  # fmt: skip
                continue
            dtype, shape = self._seen[name]
            wrong_dtype = dtype not in parameter.dtypes
            settled = parameter.name in self._fits or parameter.name in self._open
            wrong_shape = bool(parameter.shapes) and not settled
            if not wrong_dtype and not wrong_shape:
                continue
            expected = (dtypes,) * wrong_dtype + (shapes,) * wrong_shape
            found = (dtype,) * wrong_dtype + (str(list(shape)),) * wrong_shape
            yield Misfit(
                "dtype" if wrong_dtype else "shape", name, parameter.check,
                f"{'is' if wrong_dtype else 'has shape'} {' '.join(found)}, expected"
                f" {' '.join(expected)} ({self._row.name})"
                + (self._likely(parameter, shape) if wrong_shape else ""),
                " ".join(expected), " ".join(found),
            )  # fmt: skip

    def _strays(self) -> Iterator[Misfit]:
        for name in sorted(self._seen.keys() - set(self._held.values()) - BESIDE):
            dtype, shape = self._seen[name]
            yield Misfit(
                "stray", name, "scale-layout", f"has no place in {self._row.name}",
                "no such tensor", f"{dtype} {list(shape)}",
            )  # fmt: skip

    def _expected(self, parameter: Parameter) -> str:
        texts = []
        for wanted in map(template, parameter.shapes):
            text = wanted.text(self._sizes)
            if self._experts and wanted.names:
                text = f"[{self._experts[0]}, {text[1:]}"
            texts.append(text)
        return " or ".join(texts)

    def _likely(self, parameter: Parameter, shape: Shape) -> str:
        """The mistake that a wrong shape looks like."""
        for wanted in map(template, parameter.shapes):
            sizes = wanted.shape(self._sizes)
            if len(sizes) != 2 or None in sizes:
                continue
            n, k = (size or 0 for size in sizes)
            if n != k and shape[-2:] == (k, n):
                return ": it is transposed"
            if len(shape) == 1 and shape[0] == -(-n // 128) * 128 * (-(-k // 4) * 4):
                return ": it is in the order of TensorRT-LLM's kernels, tiles of 128 x 4"
        return ""


def _group(scale: Template, sizes: Sizes) -> tuple[int, int]:
    """The weights that share a scale of such a shape."""
    if "G" in scale.names:
        return 1, sizes.get("G", 0)
    if "C" in scale.names:
        return sizes["R"], sizes["C"]
    return (1, 0) if scale.names else (0, 0)
