"""Gated activations of MLPs, fused with the product."""

from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, check, launch, op, require_kernels

# In the order of csrc/decoder_math.h.
GATED_KINDS = ("silu", "gelu_tanh", "gelu", "swiglu_oai")


@op(
    "gated_activation(Tensor gate_up, str kind, float limit=0.0, bool interleaved=False) -> Tensor",
    lambda x, *_args: x.new_empty(*x.shape[:-1], x.shape[-1] // 2),
)
def gated_activation(
    gate_up: Tensor, kind: str, limit: float = 0.0, interleaved: bool = False
) -> Tensor:
    """Compute act(gate) · up [..., n] for gate_up [..., 2n], in float32, rounded once.

    gate_up: contiguous, in the device's activation dtype; n gates and then n ups, or each gate
    before its up if interleaved. limit: gates are clamped to at most it and ups to ±it before; 0
    is none. kind, of GATED_KINDS: "silu"; "gelu_tanh", the approximation by tanh; "gelu", by erf;
    "swiglu_oai", gate · sigmoid(1.702 gate) · (up + 1), as in gpt-oss (interleaved, limit 7).
    Raises ValueError for anything else.
    """
    device = gate_up.device
    require_kernels(device)
    if kind not in GATED_KINDS:
        raise ValueError(f"there is no gated activation {kind!r}, only {', '.join(GATED_KINDS)}")
    if not limit >= 0:
        raise ValueError(f"limit is {limit}, needs 0 (none) or more")
    if gate_up.dim() == 0 or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has shape {list(gate_up.shape)}, needs [..., 2n]")
    check("gate_up", gate_up, device, ACTIVATION[device.type], gate_up.shape)
    n = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], n)
    if y.numel():
        rows, number = y.numel() // n, GATED_KINDS.index(kind)
        launch("gated_activation", device, gate_up, y, rows, n, number, interleaved, limit)
    return y
