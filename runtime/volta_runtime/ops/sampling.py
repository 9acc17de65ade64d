"""From a step's logits to its tokens, with every parameter of a request a tensor of one per row.

A batch mixes requests, and a captured CUDA graph serves any of them, so parameters are read on the
device when a kernel runs. Logits are contiguous [rows, vocab], float32, or float16 on CUDA, with at
most 2**20 tokens. Every op raises ValueError for a tensor that is not as it says.
"""

import torch
from torch import Tensor

from volta_runtime.ops.native import check, launch, op, require_kernels

_MAX_VOCAB = 1 << 20
_MAX_TOP_LOGPROBS = 20


def _nothing(*_: Tensor) -> None:
    """The fake of an op that only writes into its arguments."""


def _check_logits(logits: Tensor) -> tuple[torch.device, int, int]:
    """Device, rows and vocabulary of logits that a kernel takes."""
    device = logits.device
    require_kernels(device)
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= _MAX_VOCAB:
        raise ValueError(
            f"logits has shape {list(logits.shape)}, needs [rows, vocab] with 1 to {_MAX_VOCAB} "
            "tokens"
        )
    half = device.type == "cuda" and logits.dtype == torch.float16
    check("logits", logits, device, torch.float16 if half else torch.float32, logits.shape)
    return device, *logits.shape


def _half(logits: Tensor) -> int:
    return int(logits.dtype == torch.float16)


def _check_rows(device: torch.device, rows: int, **tensors: tuple[Tensor, torch.dtype]) -> None:
    for name, (tensor, dtype) in tensors.items():
        check(name, tensor, device, dtype, (rows,))


@op(
    "apply_penalties(Tensor(a!) logits, Tensor output_counts, Tensor prompt_mask, "
    "Tensor row_slots, Tensor repetition, Tensor frequency, Tensor presence) -> ()",
    _nothing,
)
def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    prompt_mask: Tensor,
    row_slots: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Penalise in place what a request has said and read, as the OpenAI API and vLLM define it.

    A token of the prompt or the output has its logit divided by repetition where that is positive
    and multiplied where not. Then frequency times its count in the output is taken off, and
    presence once where it has one.

    output_counts: int32, prompt_mask: bool, both [slots, vocab], a slot for each request.
    row_slots: int32 [rows], the slot of a row; rows with a number outside [0, slots) stay as they
    are, as do those whose penalties are 1, 0 and 0.
    repetition (above 0), frequency, presence: float32 [rows].
    """
    device, rows, vocab = _check_logits(logits)
    if output_counts.dim() != 2:
        raise ValueError(
            f"output_counts has shape {list(output_counts.shape)}, needs [slots, vocab]"
        )
    slots = output_counts.shape[0]
    check("output_counts", output_counts, device, torch.int32, (slots, vocab))
    check("prompt_mask", prompt_mask, device, torch.bool, (slots, vocab))
    _check_rows(
        device,
        rows,
        row_slots=(row_slots, torch.int32),
        repetition=(repetition, torch.float32),
        frequency=(frequency, torch.float32),
        presence=(presence, torch.float32),
    )
    if rows and slots:
        launch(
            "apply_penalties",
            device,
            logits,
            _half(logits),
            output_counts,
            prompt_mask,
            row_slots,
            repetition,
            frequency,
            presence,
            rows,
            vocab,
            slots,
        )


@op("count_tokens(Tensor(a!) output_counts, Tensor row_slots, Tensor tokens) -> ()", _nothing)
def count_tokens(output_counts: Tensor, row_slots: Tensor, tokens: Tensor) -> None:
    """Add one to output_counts[row_slots[row], tokens[row]] for every row.

    output_counts: int32 [slots, vocab]. row_slots: int32 [rows]; tokens: int64 [rows]. Slots and
    tokens outside their range, as the -1 of sample, count nowhere.
    """
    device = output_counts.device
    require_kernels(device)
    if output_counts.dim() != 2 or not 1 <= output_counts.shape[1] <= _MAX_VOCAB:
        raise ValueError(
            f"output_counts has shape {list(output_counts.shape)}, needs [slots, vocab] with 1 to "
            f"{_MAX_VOCAB} tokens"
        )
    slots, vocab = output_counts.shape
    rows = tokens.numel()
    check("output_counts", output_counts, device, torch.int32, (slots, vocab))
    _check_rows(device, rows, row_slots=(row_slots, torch.int32), tokens=(tokens, torch.int64))
    if rows and slots:
        launch("count_tokens", device, output_counts, row_slots, tokens, rows, vocab, slots)


@op("apply_bias(Tensor(a!) logits, Tensor ids, Tensor values) -> ()", _nothing)
def apply_bias(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    """Add values float32 [rows, n] to the logits at ids int32 [rows, n], in place.

    Ids outside the vocabulary, such as -1, are unused; the others differ within a row.
    """
    device, rows, vocab = _check_logits(logits)
    if ids.dim() != 2 or ids.shape[1] > _MAX_VOCAB:
        raise ValueError(f"ids has shape {list(ids.shape)}, needs [{rows}, n], n <= {_MAX_VOCAB}")
    n = ids.shape[1]
    check("ids", ids, device, torch.int32, (rows, n))
    check("values", values, device, torch.float32, (rows, n))
    if rows and n:
        launch("apply_bias", device, logits, _half(logits), ids, values, rows, vocab, n)


@op("apply_mask(Tensor(a!) logits, Tensor allowed) -> ()", _nothing)
def apply_mask(logits: Tensor, allowed: Tensor) -> None:
    """Set the logits of tokens that are not allowed to -inf, in place.

    allowed: int32 [rows, ceil(vocab / 32)], the bit t % 32 of word t // 32 for token t, as grammar
    engines give it. All ones (-1) allow everything.
    """
    device, rows, vocab = _check_logits(logits)
    check("allowed", allowed, device, torch.int32, (rows, -(-vocab // 32)))
    if rows:
        launch("apply_mask", device, logits, _half(logits), allowed, rows, vocab)


def _sample_fake(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty(rows, dtype=torch.float32),
    )


@op(
    "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
    "Tensor seeds, Tensor steps) -> (Tensor, Tensor)",
    _sample_fake,
)
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    steps: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw a token per row: int64 [rows], and its log-probability, float32 [rows].

    In this order, each over what the one before has kept, ties always by the lower index:
    temperature: float32 [rows], divides the logits; below 1e-5 (or NaN) the likeliest token is
    taken and nothing else counts. top_k: int32 [rows], keeps so many of the likeliest; 0 and less
    is off. top_p: float32 [rows], keeps the fewest of the likeliest whose renormalised mass reaches
    it, at least one; 1 and more (or NaN) is off. min_p: float32 [rows], keeps tokens at least so
    many times as probable as the likeliest; 0 and less (or NaN) is off.

    seeds, steps: int64 [rows]. The same seed, step and logits give the same token in any batch, on
    CPU and CUDA: an exponential race, whose noise is Philox4x32-10 keyed by the seed at counter
    (token // 4, 0, step), word token % 4. A token e**-29 times as likely as the likeliest is never
    drawn.

    The log-probability is that of the logits as given, before temperature and cuts. NaN logits
    count as -inf, inf as the largest float. A row with nothing above -inf has the token -1 and a
    log-probability of NaN.
    """
    device, rows, vocab = _check_logits(logits)
    _check_rows(
        device,
        rows,
        temperature=(temperature, torch.float32),
        top_k=(top_k, torch.int32),
        top_p=(top_p, torch.float32),
        min_p=(min_p, torch.float32),
        seeds=(seeds, torch.int64),
        steps=(steps, torch.int64),
    )
    tokens, logprobs = _sample_fake(logits)
    if rows:
        launch(
            "sample",
            device,
            logits,
            _half(logits),
            temperature,
            top_k,
            top_p,
            min_p,
            seeds,
            steps,
            tokens,
            logprobs,
            rows,
            vocab,
        )
    return tokens, logprobs


def _top_logprobs_fake(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], n)
    return (
        logits.new_empty(shape, dtype=torch.float32),
        logits.new_empty(shape, dtype=torch.int64),
    )


@op("top_logprobs(Tensor logits, int n) -> (Tensor, Tensor)", _top_logprobs_fake)
def top_logprobs(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest log-probabilities of a row, falling, float32 [rows, n], and their ids, int64.

    1 <= n <= 20 and n <= vocab; ties by the lower index. Logits that are not finite count as in
    sample; a row with nothing above -inf has NaN.
    """
    device, rows, vocab = _check_logits(logits)
    if not 1 <= n <= min(_MAX_TOP_LOGPROBS, vocab):
        raise ValueError(f"n is {n}, needs 1 to {min(_MAX_TOP_LOGPROBS, vocab)}")
    values, ids = _top_logprobs_fake(logits, n)
    if rows:
        launch("top_logprobs", device, logits, _half(logits), values, ids, rows, vocab, n)
    return values, ids


def _token_logprobs_fake(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.new_empty(ids.shape, dtype=torch.float32)


@op("token_logprobs(Tensor logits, Tensor ids) -> Tensor", _token_logprobs_fake)
def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """The log-probabilities of ids int64 [rows, n], float32 [rows, n]; NaN for ids out of range.

    Logits that are not finite count as in sample.
    """
    device, rows, vocab = _check_logits(logits)
    if ids.dim() != 2 or ids.shape[1] > _MAX_VOCAB:
        raise ValueError(f"ids has shape {list(ids.shape)}, needs [{rows}, n], n <= {_MAX_VOCAB}")
    n = ids.shape[1]
    check("ids", ids, device, torch.int64, (rows, n))
    values = _token_logprobs_fake(logits, ids)
    if rows and n:
        launch("token_logprobs", device, logits, _half(logits), ids, values, rows, vocab, n)
    return values
