"""FP8 E4M3 with a scale for the tensor, for each row, for each block, or E8M0 for a group."""

from volta_runtime.quant.floats import E4M3, E8M0, blocks, floats, spread
from volta_runtime.quant.stored import F32, Stored


def dequantize(w: Stored) -> F32:
    """[.., N, K] of codes and whichever scale there is: [], [1], [N], [N, 1] or of blocks.

    It multiplies under the name weight_scale_inv too. ModelOpt's blocks are [N/R, 1, K/C, 1].
    """
    values = E4M3[w["weight"]]
    stored = w["weight_scale_inv"] if "weight_scale_inv" in w else w["weight_scale"]
    scale = E8M0[stored] if stored.dtype == "uint8" else floats(stored)
    *experts, n, k = values.shape
    if scale.size == 1:
        return values * scale.reshape(())
    if scale.shape in (values.shape[:-1], (*experts, n, 1)):  # a row each
        return values * scale.reshape(*experts, n, 1)
    if experts and scale.size == experts[0]:  # an expert each
        return values * scale.reshape(*experts, 1, 1)
    if scale.ndim == len(experts) + 4:
        scale = scale[..., 0, :, 0]
    return values * blocks(scale, n, k, w.block)


def dequantize_mx(w: Stored) -> F32:
    """MXFP8: codes [.., N, K], E8M0 scales [.., N, K/32]."""
    values = E4M3[w["weight"]]
    return values * spread(E8M0[w["weight_scale"]], values.shape[-1])
