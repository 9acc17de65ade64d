"""How the GPUs are joined, through real pynvml."""

import msgspec
import pytest


@pytest.mark.parametrize("snapshot", ["dgx-1", "dgx-2", "v100-sxm2-32gb-x2", "v100-pcie-32gb-x2"])
def test_the_matrices_are_the_hosts(fake_host, fakegpu, snapshot: str):
    fake = fakegpu.load(snapshot)
    topo = msgspec.to_builtins(fake_host(snapshot).topo())
    assert topo["uuids"] == [gpu["uuid"] for gpu in fake.nvml["gpus"]]
    for name in ("links", "p2p", "cpus", "nodes"):
        assert topo[name] == fake.topo[name], name


def test_six_links_a_gpu_lead_where_the_cube_mesh_says(fake_host, fakegpu):
    rows = fakegpu.load("dgx-1").topo["links"]
    assert [sum(int(c[2:]) for c in row if c.startswith("NV")) for row in rows] == [6] * 8
    code = """
print(*(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId[9:11] for link in range(6)))
"""
    # GPU0: NV1 to GPU1 and GPU2, NV2 to GPU3 and GPU4
    assert fake_host("dgx-1").python(code) == "07 0A 0B 0B 85 85"


def test_a_link_that_is_down_is_missing_between_its_two_gpus(fake_host, fakegpu):
    gpus = fakegpu.load("v100-sxm2-32gb-x2").nvml["gpus"]
    gpus[0]["nvlinks"][5]["active"] = False
    assert fake_host("v100-sxm2-32gb-x2", gpus=gpus).topo().links == [["X", "NV5"], ["NV6", "X"]]
