"""CUDA graphs of operators: replays against eager calls."""

import torch


def check_replays(call, change, times=1000, compared=17):
    """Capture call() -> tensors, and replay it after each change(i), which sets every input anew.

    Some replays are compared with an eager call of the same inputs, bit for bit.
    """
    change(0)
    call()  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    results = []
    for i in range(times):
        change(i)
        graph.replay()
        if i % (times // compared) == 0:
            replayed = [t.clone() for t in captured]
            change(i)
            for got, expected in zip(replayed, call(), strict=True):
                torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
            results.append(replayed)
    first, *others = results
    assert any(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
