"""Pickled weights: what they import is read, and nothing of it is run."""

import collections
import os
import pickle
import zipfile

import pytest
import torch

from volta_runtime.checkpoint import CheckpointError, inspect, open_checkpoint
from volta_runtime.checkpoint.pickles import imports

WEIGHTS = collections.OrderedDict(
    a=torch.zeros(2, 3, dtype=torch.bfloat16), b=torch.nn.Parameter(torch.zeros(4))
)


class Evil:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.fixture
def found(tmp_path):
    """Put a file into an otherwise empty model; return the one fault of its weights."""
    (tmp_path / "config.json").write_text("{}")

    def read(write, name="pytorch_model.bin"):
        write(tmp_path / name)
        faults = inspect(tmp_path).contents.faults
        (fault,) = [fault for fault in faults if fault.check == "pickle-weights"]
        return fault

    return read


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves_needs_tensors_alone(found, zipped):
    fault = found(lambda file: torch.save(WEIGHTS, file, _use_new_zipfile_serialization=zipped))
    assert fault.level == "warn"


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_runs_code_is_named(found, zipped, protocol):
    held = {"a": torch.zeros(2), "b": Evil()}
    fault = found(
        lambda file: torch.save(
            held, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped
        )
    )
    assert fault.level == "fail"
    assert fault.found in ("posix.system", "os.system")


# Opcodes by hand: what hides the name that STACK_GLOBAL takes.
GLOBAL = pickle.SHORT_BINUNICODE
OS, SYSTEM = GLOBAL + b"\x02os", GLOBAL + b"\x06system"
DECOY = GLOBAL + b"\x0bcollections" + GLOBAL + b"\x0bOrderedDict"
BY_HAND = {
    "plain": (OS + SYSTEM + pickle.STACK_GLOBAL, "os.system"),
    "from the memo": (
        OS + pickle.MEMOIZE + SYSTEM + pickle.MEMOIZE + b"00h\x00h\x01" + pickle.STACK_GLOBAL,
        "os.system",
    ),
    "behind a decoy": (OS + SYSTEM + DECOY + b"00" + pickle.STACK_GLOBAL, "a hidden name"),
    "by INST": (b"(ios\nsystem\n", "os.system"),
    "by an extension": (pickle.EXT1 + b"\x07", "copyreg extension 7"),
}


@pytest.mark.parametrize(("opcodes", "name"), BY_HAND.values(), ids=BY_HAND)
def test_names_that_are_hidden_are_found(found, opcodes, name):
    def write(file):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x04" + opcodes + b".")

    fault = found(write)
    assert (fault.level, fault.found) == ("fail", name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        b"\x80\x02}q\x00(X\xff\xff\xff\x7f",  # a text of 2 GiB
        b"\x80\x04\x8e" + b"\xff" * 8,  # bytes of 2^64
        b"\x80\x02" + b"(" * 100,  # no end
        b"junk" * 100,
    ],
)
def test_what_cannot_be_read_to_its_end_is_no_sound_file(found, content):
    fault = found(lambda file: file.write_bytes(content))
    assert fault.level == "fail"
    assert "its opcodes cannot be read to their end" in fault.message


def test_a_plain_pickle_is_named_by_what_it_runs(found):
    assert found(lambda file: file.write_bytes(pickle.dumps(Evil()))).found == "posix.system"


def test_a_zip_bomb_is_not_unpacked(found):
    def write(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(64 << 20))

    assert "more than 33,554,432 bytes of opcodes" in found(write).message


def test_imports_are_those_that_the_unpickler_asks_for(tmp_path):
    """An unpickler that notes names instead of loading them is the judge."""
    file = tmp_path / "w.pt"
    torch.save(WEIGHTS, file)
    asked = set()

    class Notes(pickle.Unpickler):
        def find_class(self, module, name):
            asked.add(f"{module}.{name}")
            return lambda *args: collections.OrderedDict()

        def persistent_load(self, key):
            return None

    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        Notes(archive.open(name)).load()
    with file.open("rb") as stream:
        assert set(imports(stream)) == asked


def test_who_serves_refuses_them(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    torch.save(WEIGHTS, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="its weights are pickled, which runs code"):
        open_checkpoint(tmp_path)
