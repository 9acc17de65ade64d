"""Token embeddings, of a whole vocabulary or of one device's share of it."""

import torch
from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, check, launch, op, require_kernels


def _empty(ids: Tensor, table: Tensor, *_args: float) -> Tensor:
    return table.new_empty(*ids.shape, table.shape[1], dtype=ACTIVATION[table.device.type])


@op(
    "embedding(Tensor ids, Tensor table, float scale=1.0, int first_row=0) -> Tensor",
    _empty,
)
def embedding(ids: Tensor, table: Tensor, scale: float = 1.0, first_row: int = 0) -> Tensor:
    """Look up x [..., hidden] = table[ids - first_row] · scale in the device's activation dtype.

    ids: int32 or int64, any shape. table: float16 [rows, hidden], on the CPU float32 too. It is
    the share of a vocabulary from first_row on: other ids give zeros, so that the shares' results
    add up to the whole.
    Raises ValueError for anything else.
    """
    device = table.device
    require_kernels(device)
    if table.dim() != 2 or 0 in table.shape:
        raise ValueError(f"table has shape {list(table.shape)}, needs [rows, hidden]")
    if first_row < 0:
        raise ValueError(f"first_row is {first_row}, needs 0 or more")
    index = torch.int32 if ids.dtype == torch.int32 else torch.int64
    activation = ACTIVATION[device.type]
    element = activation if table.dtype == activation else torch.float16
    check("ids", ids, device, index, ids.shape)
    check("table", table, device, element, table.shape)
    rows, hidden = table.shape
    x = _empty(ids, table)
    if ids.numel():
        widths = (ids.element_size(), table.element_size())
        sizes = (ids.numel(), rows, hidden, first_row)
        launch("embedding", device, ids, table, x, *sizes, *widths, scale)
    return x
