"""AWQ: 4-bit codes, eight output features to a word, in an order of their own."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="awq",
        title="AWQ, 4 bits (GEMM packing)",
        parameters=(
            Parameter("qweight", "codes", ("I32",), ("[K, N/8]",)),
            Parameter("scales", "scale", FLOATS, ("[K/G, N]",), "multiply"),
            Parameter("qzeros", "zero", ("I32",), ("[K/G, N/8]",), "subtract"),
        ),
        bits=4.16,
        formula="W[n, k] = (q[k, n] − z[⌊k/G⌋, n]) · scales[⌊k/G⌋, n]",
        source="AutoAWQ awq/modules/linear/gemm.py, awq/utils/packing_utils.py",
        note="The nibbles of a word, the lowest first, are columns 0 2 4 6 1 3 5 7 of its eight.",
    ),
)
