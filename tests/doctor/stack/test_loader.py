"""The CUDA libraries that the dynamic linker finds, in its order."""

from volta_doctor.facts.python_envs.loader import configured, search

ARCH = "/usr/lib/x86_64-linux-gnu"


def names(found):
    return [(item.path, item.via) for item in found.libraries]


def test_order_and_each_file_once(host, elf_file):
    library = elf_file()
    files = {
        "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n/opt/last # a comment\n",
        "/etc/ld.so.conf.d/988_cuda-12.conf": "/usr/local/cuda-12/lib64\n",
        "/etc/ld.so.conf.d/x86_64-linux-gnu.conf": f"/lib/x86_64-linux-gnu\n{ARCH}\n",
        "/lib": "-> usr/lib",
        f"{ARCH}/libcuda.so.580.95.05": library,
        f"{ARCH}/libcuda.so.1": "-> libcuda.so.580.95.05",
        "/usr/local/cuda-12/lib64/libcudart.so.12.6.77": library,
        "/usr/local/cuda-12/lib64/libcudart.so.12": "-> libcudart.so.12.6.77",
        "/opt/own/libcudart.so.12": library,
        "/usr/lib/i386-linux-gnu/libcuda.so.1": elf_file(bits=32),
        "/opt/last/libcudart.so.11.0": library,
    }
    env = {"LD_LIBRARY_PATH": "/opt/own:relative::/usr/lib/i386-linux-gnu"}
    found = search(host(files=files), "vllm.service", env)
    assert found.problem == ""
    assert names(found) == [
        ("/opt/own/libcudart.so.12", "LD_LIBRARY_PATH"),
        ("/usr/local/cuda-12/lib64/libcudart.so.12", "/etc/ld.so.conf.d/988_cuda-12.conf"),
        ("/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/ld.so.conf.d/x86_64-linux-gnu.conf"),
        ("/opt/last/libcudart.so.11.0", "/etc/ld.so.conf"),
    ]
    assert found.libraries[2].real == "/lib/x86_64-linux-gnu/libcuda.so.580.95.05"


def test_files_that_include_one_another_end(host):
    files = {"/etc/ld.so.conf": "include ld.so.conf\ninclude more/*.conf\n/a\n"}
    assert ("/a", "/etc/ld.so.conf") in configured(host(files=files))


def test_inside_a_container(host, elf_file):
    root = "/proc/4711/root"
    files = {
        f"{root}/usr/local/cuda/compat/libcuda.so.1": elf_file(),
        f"{root}/etc/ld.so.conf": "/usr/local/cuda/compat\n",
        "/usr/lib64/libcuda.so.1": elf_file(),
    }
    found = search(host(files=files), "x", {}, root)
    assert names(found) == [(f"{root}/usr/local/cuda/compat/libcuda.so.1", "/etc/ld.so.conf")]


def test_a_hidden_environment(host):
    assert "hidden" in search(host(), "vllm.service", None).problem
