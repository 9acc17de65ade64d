"""AWQ: 4-bit codes, eight to a word: of output features in an order of their own, or of inputs."""

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
    WeightFormat(
        name="awq-gemv",
        title="AWQ, 4 bits (GEMV packing)",
        parameters=(
            Parameter("qweight", "codes", ("I32",), ("[N, K/8]",)),
            Parameter("scales", "scale", FLOATS, ("[N, ⌈K/1024⌉*1024/G]",), "multiply"),
            Parameter("qzeros", "zero", ("I32",), ("[N, ⌈K/1024⌉*128/G]",), "subtract"),
        ),
        bits=4.16,
        formula="W[n, k] = (q[n, k] − z[n, ⌊k/G⌋]) · scales[n, ⌊k/G⌋]",
        source="AutoAWQ awq/modules/linear/gemv.py (calculate_zeros_width)",
        refused="AutoAWQ's own kernel alone reads it; take the model in the GEMM packing",
        note="G is 32, 64 or 128. Scales and zeros run on to the end of the last 1024 inputs, which"
        " makes the zeros whole words.",
    ),
)
