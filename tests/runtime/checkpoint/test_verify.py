"""SHA256SUMS: the first bad file is named."""

import subprocess

import pytest
from checkpoints import write

from volta_runtime.checkpoint import CheckpointError, verify
from volta_runtime.checkpoint.sums import write_sums


@pytest.fixture
def checkpoint(tmp_path):
    path = write(tmp_path, {"a.weight": ("F16", (8, 16)), "b.weight": ("F32", (8,))}, {})
    write_sums(path)
    return path


def test_sound_checkpoint_passes_and_reports_bytes(checkpoint):
    steps = []
    verify(checkpoint, lambda *step: steps.append(step))
    name, done, total = steps[-1]
    assert (name, done) == ("model.safetensors", total)
    assert total == sum(f.stat().st_size for f in checkpoint.iterdir() if f.name != "SHA256SUMS")


def test_sha256sum_accepts_the_file(checkpoint):
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=checkpoint, check=True)


def test_changed_byte_names_the_file_and_both_digests(checkpoint):
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: sha256 is \w{64}, .* \w{64}"):
        verify(checkpoint)


def test_missing_and_unlisted_files_are_named(checkpoint):
    (checkpoint / "extra.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"extra\.bin: not listed in SHA256SUMS"):
        verify(checkpoint)
    (checkpoint / "extra.bin").unlink()
    (checkpoint / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: missing, but listed"):
        verify(checkpoint)


def test_headers_are_checked_when_the_sums_agree(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"")
    write_sums(checkpoint)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the file is empty"):
        verify(checkpoint)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "SHA256SUMS: missing"),
        ("", "lists no files"),
        ("abc  config.json\n", "line 1 is not"),
        (f"{'0' * 64}  ../outside\n", "line 1 is not"),
        (f"{'0' * 64}  /etc/passwd\n", "line 1 is not"),
    ],
)
def test_unusable_sums_are_refused(checkpoint, content, message):
    sums = checkpoint / "SHA256SUMS"
    if content is None:
        sums.unlink()
    else:
        sums.write_text(content)
    with pytest.raises(CheckpointError, match=message):
        verify(checkpoint)


def test_missing_directory_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="gone: no such directory"):
        verify(tmp_path / "gone")
