"""GPTQ: whole numbers of 2, 3, 4 or 8 bits, packed along K, in an order that g_idx may tell."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="gptq",
        title="GPTQ, 2, 3, 4 and 8 bits",
        parameters=(
            Parameter("qweight", "codes", ("I32",), ("[K*b/32, N]",)),
            Parameter("scales", "scale", FLOATS, ("[K/G, N]",), "multiply"),
            Parameter("qzeros", "zero", ("I32",), ("[K/G, N*b/32]",), "subtract"),
            Parameter("g_idx", "order", ("I32",), ("[K]",), optional=True),
        ),
        bits=4.16,
        formula="W[n, k] = (q[k, n] − z[g, n]) · scales[g, n], g = g_idx[k] or ⌊k/G⌋;"
        " z is the stored zero + 1, and as it is stored in checkpoint_format gptq_v2",
        source="GPTQModel nn_modules/qlinear; AutoGPTQ nn_modules/qlinear",
        note="The fields of a word follow each other from its lowest bit; those of 3 bits run from"
        " one word into the next. With desc_act g_idx is no staircase. GPTQModel takes the 1 of"
        " the stored zeros from whole words: a reader that adds it to each field is wrong beside a"
        " zero of 0.",
    ),
)
