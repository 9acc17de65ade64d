"""`volta-doctor arch` as it is run: targets, cards, the gate, formats and wrong usage."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile

import jsonschema
import pytest

from volta_doctor import docs

SITE = "srv/venv/lib/python3.11/site-packages"
NO_HOST = {"VOLTA_DOCTOR_SYSROOT": "/"}


@pytest.fixture
def arch(doctor, tmp_path):
    """arch(*arguments): run it on this machine, in an empty directory."""
    return lambda *args, **env: doctor("arch", *args, **env)


def ptx(arch):
    return f".version 7.8\n.target sm_{arch}\n".encode()


@pytest.fixture
def files(tmp_path, shared_object):
    """Libraries by what they carry."""
    made = {
        "volta.so": shared_object([70, 80]),
        "ampere.so": shared_object([80]),
        "ptx.so": shared_object([80], ptx=[70], isa="7.8"),
        "broken.so": shared_object([75, 80])[:200],
        "plain.so": shared_object(needs=["libcudart.so.12"]),
        "text.ptx": ptx(70),
    }
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def wheel(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "options", "code", "verdict"),
    [
        ("volta.so", [], 0, "runs"),
        ("ampere.so", [], 2, "cannot run"),
        ("ampere.so", ["--gpu", "a100"], 0, "runs"),
        ("ampere.so", ["--gpu", "NVIDIA A10"], 0, "runs"),
        ("volta.so", ["--gpu", "T4"], 0, "runs"),
        ("ampere.so", ["--gpu", "sm_75"], 2, "cannot run"),
        ("ptx.so", [], 0, "runs after JIT"),
        ("ptx.so", ["--driver", "580.95.05"], 0, "runs after JIT"),
        ("ptx.so", ["--driver", "515.43.04"], 2, "cannot run"),
        ("volta.so", ["--driver", "535.183.01"], 1, "runs"),
        ("volta.so", ["--driver", "590.48.01"], 2, "cannot run"),
        ("broken.so", [], 3, "not known"),
        ("plain.so", [], 0, "no device code"),
    ],
)
def test_verdicts_and_exit_codes(arch, files, name, options, code, verdict):
    done = arch(str(files / name), "--format", "json", "--gpu", "v100", *options)
    assert (done.returncode, done.stderr) == (code, "")
    report = json.loads(done.stdout)
    assert report["targets"][0]["verdict"] == verdict
    jsonschema.validate(report, json.loads(docs.ARCH_SCHEMA_JSON.read_text()))


@pytest.mark.parametrize(
    ("names", "required", "code", "says"),
    [
        (["volta.so"], "sm_70", 0, "has sm_70:"),
        (["volta.so"], "sm_70,sm_80", 0, "has sm_70, sm_80:"),
        (["volta.so", "ampere.so"], "sm_70", 2, "lacks sm_70:"),
        (["ampere.so"], "sm_70,sm_80", 2, "ampere.so: no sm_70, but sm_80"),
        (["ptx.so"], "sm_70", 2, "no sm_70, but sm_80, PTX compute_70"),
        (["broken.so"], "sm_70", 3, "is cut short"),
        (["broken.so", "ampere.so"], "sm_70", 2, "lacks sm_70:"),
        (["plain.so"], "sm_70", 3, "No file has machine code."),
        (["ampere.so"], "sm_80", 0, "has sm_80:"),
        (["text.ptx"], "sm_70", 2, "text.ptx: no sm_70, but PTX compute_70"),
    ],
)
def test_the_gate(arch, files, names, required, code, says):
    done = arch(*(str(files / name) for name in names), "--require", required)
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Missing argument"),
        (["x.so", "--gpu", "gtx 9"], "no card 'gtx 9'; there are p100"),
        (["x.so", "--require", "70"], "no architecture '70'; sm_70 is one"),
        (["x.so", "--require", ","], "--require names no architecture"),
        (["x.so", "--driver", "new"], "--driver new: a version is meant"),
        (["x.so", ""], "a target is empty: a variable that is not set?"),
        (["x.so", "--gpu", ""], "no card ''"),
        (["x.so", "--driver", ""], "--driver : a version is meant"),
        (["x.so", "--driver", "580"], "--driver 580: a version is meant"),
        (["\u00b2"], "\u00b2: No such file or directory"),
        (["/no/such/thing"], "/no/such/thing: No such file or directory"),
        (["volta.so", "/no/such/thing"], "volta.so: No such file or directory"),
        (["4000000000"], "there is no such process"),
    ],
)
def test_wrong_usage(arch, args, says):
    done = arch(*args)
    assert (done.returncode, done.stdout) == (64, "")
    assert says in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_may_not_be_read_is_not_known(repo, files):
    (files / "volta.so").chmod(0o600)
    command = [shutil.which("setpriv"), "--reuid", "65534", "--clear-groups", sys.executable]
    targets = [str(files / "volta.so"), "1"]
    done = subprocess.run(
        [*command, "-m", "volta_doctor", "arch", "--gpu", "v100", *targets],
        env={"PYTHONPATH": str(repo / "doctor"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert "volta.so: Permission denied" in done.stdout
    assert "not known: process 1" in done.stdout


def test_one_bad_file_among_400(made_host, shared_object):
    good = {f"{SITE}/good/g{n}.abi3.so": shared_object([70]) for n in range(400)}
    bad = {f"{SITE}/bad/_C.abi3.so": shared_object([80])}
    done = made_host(files=good | bad).arch("/srv/venv")
    assert done.returncode == 2
    assert "Without code that runs on a V100: _C.abi3.so (only sm_80)." in done.stdout
    assert "403 with device code: 402 run, 1 cannot run" in done.stdout
    assert len(done.stdout.splitlines()) < 12
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_gate_asks_what_is_in_the_files_alone(made_host):
    host = made_host(files={f"{SITE}/torch/version.py": "__version__ = '2.10.0+cpu'\n"})
    report = host.report("--require", "sm_70", "/srv/venv")
    (target,) = report["targets"]
    assert (report["exit_code"], target["required"], target["verdict"]) == (0, "has it", "runs")
    assert (target["first_break"], target["findings"]) == (None, [])
    assert host.report("/srv/venv")["exit_code"] == 2


@pytest.mark.parametrize(
    ("names", "verdict", "code", "gate"),
    [
        # beside a library they are data
        (["volta.so", "80.cubin", "80.ptx"], "runs", 0, 2),
        (["volta.so", "70.cubin", "80.cubin", "70.ptx"], "runs", 0, 0),
        (["ampere.so", "70.cubin"], "cannot run", 2, 2),
        # of many, one is for the card
        (["70.cubin", "80.cubin"], "runs", 0, 0),
        (["80.cubin", "80.ptx"], "cannot run", 2, 2),
        (["70.ptx", "80.ptx"], "runs after JIT", 0, 3),
    ],
)
def test_kernels_in_files_of_their_own(arch, files, data, names, verdict, code, gate):
    cubin = (data / "device_code/cuda-11.8-sm_70.cubin").read_bytes()
    place = files / "d"
    place.mkdir()
    for name in names:
        if name.endswith(".so"):
            shutil.copy(files / name, place)
        elif name.endswith(".ptx"):
            (place / name).write_bytes(ptx(name[:2]))
        else:
            flags = cubin[48] if name == "70.cubin" else 80
            (place / name).write_bytes(cubin[:48] + bytes([flags]) + cubin[49:])
    done = arch("--gpu", "v100", "--format", "json", str(place))
    (target,) = json.loads(done.stdout)["targets"]
    assert (target["verdict"], done.returncode) == (verdict, code)
    assert all(not f["rebuild"] for f in target["files"] if not f["file"]["path"].endswith("so"))
    assert arch("--require", "sm_70", str(place)).returncode == gate


@pytest.mark.parametrize(("card", "code"), [("v100", 2), ("h100", 2), ("a100", 0)])
def test_a_wheel_with_nothing_but_code_for_other_cards(arch, tmp_path, shared_object, card, code):
    path = wheel(tmp_path / "f.whl", **{"flash_attn_2_cuda.so": shared_object([80])})
    done = arch("--gpu", card, path)
    assert done.returncode == code
    assert ("Ampere or newer" in done.stdout) == (card == "v100")


@pytest.mark.parametrize(("name", "code"), [("libcufft.so.12", 0), ("libmine.so", 2)])
def test_a_stub_of_nvidias_fails_no_other_card(arch, tmp_path, shared_object, name, code):
    (tmp_path / "libreal.so").write_bytes(shared_object([90]))
    (tmp_path / name).write_bytes(shared_object([75]))
    done = arch("--gpu", "9.0", str(tmp_path))
    assert (done.returncode, "1 runs, 1 need not run" in done.stdout) == (code, code == 0)


def test_text_in_a_wheel_is_data(arch, tmp_path):
    done = arch("--gpu", "v100", wheel(tmp_path / "n.whl", **{"n__tests__a.ptx": ptx(70)}))
    assert (done.returncode, "no device code:" in done.stdout) == (0, True)


def test_a_wheel_with_a_library_for_each_cuda(arch, tmp_path, shared_object):
    members = {
        f"b__libb_cuda{cuda}.so": shared_object(sass, needs=[f"libcudart.so.{cuda[:2]}"])
        for cuda, sass in {"118": [70], "128": [70], "130": [75]}.items()
    }
    metadata = {"b-1.dist-info__METADATA": "Name: b\nVersion: 1\n\n"}
    done = arch("--gpu", "v100", wheel(tmp_path / "b.whl", **members, **metadata))
    assert done.returncode == 0, done.stdout
    assert "2 run, 1 need not run" in done.stdout


def command_in(text, start):
    """Return the words of a command behind `start`, as a shell reads them."""
    command = text.split(start, 1)[1].split("  Nothing else", 1)[0]
    return shlex.split(command.replace("\\\n", ""), comments=True)


def test_names_cannot_steer_the_terminal_or_the_shell(arch, tmp_path, shared_object):
    evil = "\x1b]0;x\x07\x1b[31m\u202e"
    metadata = f"Name: x; touch y #{evil}\nVersion: 1$(id)+cu128\n\n"
    path = wheel(
        tmp_path / "evil.whl",
        **{f"p/{evil}.so": shared_object([80]), "x-1.dist-info__METADATA": metadata},
    )
    done = arch("--gpu", "v100", "-v", path, COLUMNS="40")
    assert done.returncode == 2
    assert not {"\x1b", "\x07", "\u202e"} & {*done.stdout}
    words = command_in(done.stdout, "CMAKE_ARGS=")
    assert words[-3] == "--no-binary"
    assert words[-2].startswith("x; touch y #")
    assert words[-1].endswith("==1$(id)")
    json.loads(arch("--gpu", "v100", "--format", "json", path).stdout)


def test_a_command_wraps_where_the_shell_lets_it(arch, tmp_path, shared_object):
    place = tmp_path / "torch_extensions/py311_cu128/my own 'ext'"
    place.mkdir(parents=True)
    (place / "x.so").write_bytes(shared_object([80]))
    done = arch("--gpu", "v100", str(tmp_path), COLUMNS="40")
    assert command_in(done.stdout, "mv ") == [str(place), f"{place}.old"]


def test_what_is_wrong_with_a_whole_target_is_told_once(arch, tmp_path):
    (tmp_path / "page.whl").write_text("<html>404</html>")
    done = arch("--gpu", "v100", str(tmp_path / "page.whl"))
    assert done.returncode == 3
    assert done.stdout.count("not a zip file") == 1, done.stdout
    os.mkfifo(tmp_path / "f\udcff")
    for form in ("table", "json"):
        target = str(tmp_path / "f\udcff")
        done = arch("--gpu", "v100", "--format", form, target, COLUMNS="200")
        assert (done.returncode, done.stderr) == (3, "")
        assert "not a file" in done.stdout


def test_files_for_other_cards_do_not_count(made_host, shared_object):
    other = {f"{SITE}/flash_attn_2_cuda.abi3.so": shared_object([80])}
    host = made_host(files=other)
    done = host.arch("/srv/venv")
    assert (done.returncode, "2 run, 1 need not run" in done.stdout) == (0, True)
    assert "flash-attention README" in host.arch("-v", "/srv/venv").stdout


def test_a_mixed_host_is_told_which_card(made_host, shared_object):
    host = made_host(files={f"{SITE}/x/_X.abi3.so": shared_object([70])})
    state = host.root.parent / "state"
    text = state.read_text()
    state.write_text(
        text.replace("gpus.1.compute_capability=7.0", "gpus.1.compute_capability=9.0").replace(
            "gpus.1.name=Tesla V100-SXM2-32GB", "gpus.1.name=NVIDIA H200"
        )
    )
    (target,) = host.report("/srv/venv")["targets"]
    judged = {f["file"]["path"].rsplit("/", 1)[-1]: f for f in target["files"]}
    assert (judged["_X.abi3.so"]["verdict"], judged["_X.abi3.so"]["card"]) == (
        "cannot run",
        "NVIDIA H200",
    )
    assert judged["libtorch_cuda.so"]["verdict"] == "runs"
    assert target["verdict"] == "cannot run"


def test_without_a_volta_card_the_files_alone_are_judged(made_host, shared_object):
    host = made_host(driver="610.10", files={f"{SITE}/x/_X.abi3.so": shared_object([90])})
    done = host.arch("--gpu", "h100", "/srv/venv")
    assert done.returncode == 2
    assert "No Volta card: the files are judged, not what they run with." in done.stdout
    assert "site-packages/exllama/ext.cpython-311" in done.stdout
    assert "TORCH_CUDA_ARCH_LIST=9.0 /srv/venv/bin/python -m pip install" in done.stdout


def torch_wheel(path, version, sass, requires, shared_object):
    name = f"torch-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {r}\n" for r in requires)
    return wheel(
        path,
        **{
            "torch__version.py": f"__version__ = '{version}'\ncuda = '12.8'\n",
            "torch__lib__libtorch_cuda.so": shared_object(sass),
            f"{name}__METADATA": f"Name: torch\nVersion: {version}\n{lines}\n",
            f"{name}__WHEEL": "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\n",
        },
    )


@pytest.mark.parametrize(
    ("version", "sass", "requires", "check"),
    [
        ("2.10.0", [70, 80], ["nvidia-cudnn-cu12==9.10.2.21"], None),
        ("2.11.0+cu128", [75, 80], ["nvidia-cudnn-cu12==9.10.2.21"], "torch-arch"),
        # its metadata alone tells
        ("2.11.0", [70], ['nvidia-nccl-cu13==2.28.9; platform_system == "Linux"'], "cu13-lib"),
        ("2.11.0", [70], ["cuda-toolkit[cublas]==13.0.2"], "cu13-lib"),
        ("2.10.0", [70], ["nvidia-cudnn-cu12==9.19.0.56"], "cudnn"),
    ],
)
def test_a_wheel_of_torch(arch, tmp_path, shared_object, version, sass, requires, check):
    path = torch_wheel(tmp_path / "torch.whl", version, sass, requires, shared_object)
    done = arch("--gpu", "v100", "--format", "json", path)
    (target,) = json.loads(done.stdout)["targets"]
    first = target["first_break"]
    assert (first["check"] if first else None) == check
    assert target["kind"] == "wheel"
    if check == "torch-arch":
        assert first["commands"] == ["pip install torch==2.10.0"]


def test_a_wheel_of_an_extension_says_how_to_build_it(arch, tmp_path, shared_object):
    path = wheel(
        tmp_path / "exllama.whl",
        **{
            "ext.so": shared_object([80], needs=["libtorch_cuda.so"]),
            "exllama-1.0.dist-info__METADATA": "Name: exllama\nVersion: 1.0\n"
            "Requires-Dist: torch==2.10.0\n\n",
        },
    )
    done = arch("--gpu", "7.0", "--format", "json", path)
    (target,) = json.loads(done.stdout)["targets"]
    assert target["first_break"]["check"] == "ext-arch"
    assert target["first_break"]["commands"] == [
        "TORCH_CUDA_ARCH_LIST=7.0 pip install --force-reinstall --no-deps --no-cache-dir"
        " --no-build-isolation --no-binary exllama exllama==1.0"
    ]


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
@pytest.mark.parametrize(("sass", "code", "verdict"), [([70], 0, "runs"), ([80], 2, "cannot run")])
def test_a_running_process(arch, tmp_path, fat_binary, sass, code, verdict):
    (tmp_path / "code.bin").write_bytes(b"".join(fat_binary((2, arch)) for arch in sass))
    source = '.section .nv_fatbin,"a"\n.incbin "code.bin"\n'
    (tmp_path / "code.s").write_text(source)
    command = ["cc", "-shared", "-o", "libcode.so", "code.s"]
    subprocess.run(command, cwd=tmp_path, check=True)
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", program, str(tmp_path / "libcode.so")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"up\n"
        done = arch(str(process.pid), "--format", "json", "--gpu", "v100")
        process.communicate(b"\n")
    (target,) = json.loads(done.stdout)["targets"]
    judged = {f["file"]["path"].rsplit("/", 1)[-1]: f["verdict"] for f in target["files"]}
    assert target["kind"] == "process"
    assert judged["libcode.so"] == verdict
    assert "libcode.so" in str(target["first_break"]) or code == 0
