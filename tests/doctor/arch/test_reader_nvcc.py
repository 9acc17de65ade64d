"""What nvcc builds here, held against what cuobjdump lists of it."""

import os
import re
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from volta_doctor.arch.reader import scan
from volta_doctor.probe import Probe

pytestmark = pytest.mark.slow

SOURCE = """
__device__ float square(float x) { return x * x; }
__global__ void squares(float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = square(y[i]);
}
extern "C" void run(float *y, int n) { squares<<<n / 256 + 1, 256>>>(y, n); }
"""
# A toolkit, the cards that it builds for, and its ways to pack
TOOLKITS = {
    "/usr/bin/nvcc": ("70", "80", ["-Xfatbin -compress-all", "-Xfatbin --compress=false"]),
    "/usr/local/cuda/bin/nvcc": (
        "75",
        "100f",
        ["-Xfatbin -compress-all", "-compress-mode=speed", "-compress-mode=size", "--no-compress"],
    ),
}
BUILDS = {
    "shared.so": "-shared -Xcompiler -fPIC",
    "linked.so": "-shared -rdc=true -Xcompiler -fPIC",
    "relocatable.o": "-rdc=true -c",
    "object.o": "-c",
    "code.fatbin": "-fatbin",
    "library.a": "-lib",
}


@pytest.fixture(scope="module")
def cuobjdump():
    """The newest one there is: it reads what all toolkits built."""
    found = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/cuobjdump"))
    if not found:
        pytest.skip("nvidia-cuda-cuobjdump is not installed")

    def listed(path):
        """Return how many pieces of SASS and PTX it lists by architecture."""
        argv = [found[-1], "--list-elf", "--list-ptx", path]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return tuple(
            Counter(re.findall(rf"\.sm_(\w+)\.{kind}$", text, re.M)) for kind in ("cubin", "ptx")
        )

    return listed


@pytest.fixture(scope="module", params=TOOLKITS)
def nvcc(request, tmp_path_factory):
    if not Path(request.param).exists():
        pytest.skip(f"there is no {request.param}")
    low, high, packings = TOOLKITS[request.param]
    place = tmp_path_factory.mktemp("nvcc")
    (place / "a.cu").write_text(SOURCE)
    path = f"{Path(request.param).parent}:{os.environ['PATH']}"

    def build(name, options):
        argv = [request.param, *options.split(), "a.cu", "-o", name]
        subprocess.run(argv, cwd=place, env=os.environ | {"PATH": path}, check=True)
        return place / name

    release = re.search(
        r"release (\d+\.\d+)",
        subprocess.run([request.param, "--version"], capture_output=True, text=True).stdout,
    )[1]
    build.low, build.high, build.packings, build.release = low, high, packings, release
    build.both = (
        f"-gencode arch=compute_{low},code=[sm_{low},compute_{low}]"
        f" -gencode arch=compute_{high},code=sm_{high}"
    )
    return build


def read(path):
    found = scan(Probe(), str(path)).files
    assert not [file.problem for file in found if file.problem]
    return found


def counts(path):
    """Return what scan finds, without the suffix that cuobjdump leaves out for a family."""
    sass, ptx = Counter(), Counter()
    for file in read(path):
        sass.update({arch.removesuffix("f"): n for arch, n in file.code.sass.items()})
        ptx.update({arch.removesuffix("f"): n for arch, n in file.code.ptx.items()})
    return sass, ptx


@pytest.mark.parametrize("name", BUILDS)
def test_builds(nvcc, cuobjdump, name):
    path = nvcc(name, f"{nvcc.both} {BUILDS[name]}")
    assert counts(path) == cuobjdump(path)
    assert counts(path)[0].keys() == {nvcc.low, nvcc.high.removesuffix("f")}


def test_packings(nvcc, cuobjdump):
    for packing in nvcc.packings:
        path = nvcc("packed.fatbin", f"{nvcc.both} -fatbin {packing}")
        assert counts(path) == cuobjdump(path)
        (file,) = read(path)
        assert list(file.code.sass) == [nvcc.low, nvcc.high]
        assert list(file.ptx_isa) == [nvcc.low]


def test_a_cubin_and_ptx(nvcc, cuobjdump):
    for arch in (nvcc.low, nvcc.high):
        (file,) = read(nvcc("code.cubin", f"-arch=sm_{arch} -cubin"))
        assert (file.kind, file.code.sass, file.build.nvcc) == ("cubin", {arch: 1}, nvcc.release)
    (file,) = read(nvcc("code.ptx", f"-arch=compute_{nvcc.low} -ptx"))
    assert (file.code.ptx, file.build.nvcc) == ({nvcc.low: 1}, nvcc.release)
    (embedded,) = read(nvcc("code.fatbin", f"{nvcc.both} -fatbin"))
    assert embedded.ptx_isa == file.ptx_isa


def test_archives_of_ar(nvcc, cuobjdump):
    long_name = "an_object_whose_name_is_longer_than_fits.o"
    objects = [nvcc("a.o", f"{nvcc.both} -c"), nvcc(long_name, f"{nvcc.both} -c")]
    for flags, name in (("rcs", "gnu.a"), ("rcsT", "thin.a")):
        path = objects[0].parent / name
        names = [file.name for file in objects]
        subprocess.run(["ar", flags, name, *names], cwd=path.parent, check=True)
        assert [file.path for file in read(path)] == [f"{path}!{file}" for file in names]
        each = [cuobjdump(file) for file in objects]
        assert counts(path) == (each[0][0] + each[1][0], each[0][1] + each[1][1])
