"""The examples of docs/arch.md say what the command says."""

import re
import shlex
import zipfile

SITE = "srv/venv/lib/python3.11/site-packages"


def host_of_the_page(made_host, shared_object, package):
    host = made_host(
        files={
            f"{SITE}/torch/version.py": "__version__ = '2.11.0+cu128'\ncuda = '12.8'\n",
            f"{SITE}/torch/lib/libtorch_cuda.so": shared_object([75, 80, 86, 90, 100, 120]),
            f"{SITE}/exllama/ext.cpython-311-x86_64-linux-gnu.so": None,
            **package("torchvision", "0.26.0", "torch==2.11.0"),
            "srv/lib/libgemm.so": shared_object([80], ptx=[70], isa="8.7"),
            "srv/dist/x": "",
        }
    )
    wheel = host.root / "srv/dist/exllama-0.3.2-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        needs = ["libtorch_cuda.so"]
        archive.writestr("exllama/ext.abi3.so", shared_object([80, 90], needs=needs))
        archive.writestr("exllama-0.3.2.dist-info/METADATA", "Name: exllama\nVersion: 0.3.2\n\n")
    return host


def test_examples(repo, made_host, shared_object, package):
    host = host_of_the_page(made_host, shared_object, package)
    page = (repo / "docs/arch.md").read_text()
    examples = re.findall(r"```console\n\$ volta-doctor arch (.*)\n((?:.*\n)*?)```", page)
    assert len(examples) == 3
    for arguments, shown in examples:
        assert host.arch(*shlex.split(arguments)).stdout == shown
