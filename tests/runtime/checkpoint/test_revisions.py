"""Files of one directory that come from two revisions."""

import pytest
from checkpoints import write

from volta_runtime.checkpoint import inspect

ONE, OTHER = "1" * 40, "2" * 40
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def make():
    def make(path):
        tensors = {"model.norm.weight": ("F16", (8,)), "lm_head.weight": ("F16", (4, 8))}
        return write(path, tensors, {"model_type": "x"}, 2, {"tokenizer.json": "{}"})

    return make


def mixed(path):
    faults = inspect(path).contents.faults
    return [fault for fault in faults if fault.check == "shard-mixed-revisions"]


def note(path, **commits):
    folder = path / ".cache" / "huggingface" / "download"
    folder.mkdir(parents=True)
    for name, commit in commits.items():
        (folder / f"{name}.metadata").write_text(f"{commit}\netag\n1764500000.0\n")


@pytest.mark.parametrize(
    ("other", "level"), [(SECOND, "fail"), ("config.json", "fail"), ("tokenizer.json", "warn")]
)
def test_notes_of_the_download_tell(make, tmp_path, other, level):
    path = make(tmp_path / "m")
    names = (FIRST, SECOND, "config.json", "tokenizer.json")
    note(path, **dict.fromkeys(names, ONE) | {other: OTHER})
    (fault,) = mixed(path)
    assert (fault.level, set(fault.found.split(", "))) == (level, {ONE[:12], OTHER[:12]})
    assert other in fault.message


def test_one_commit_is_fine_and_so_is_a_note_of_nonsense(make, tmp_path):
    path = make(tmp_path / "m")
    note(path, **{FIRST: ONE, SECOND: ONE, "config.json": "\x00\xff no commit"})
    assert mixed(path) == []


def test_links_into_two_snapshots_tell(make, tmp_path):
    for commit in (ONE, OTHER):
        make(tmp_path / "models--x--y" / "snapshots" / commit)
    path = tmp_path / "m"
    path.mkdir()
    for name in ("config.json", FIRST, SECOND, "model.safetensors.index.json"):
        commit = OTHER if name == SECOND else ONE
        (path / name).symlink_to(tmp_path / "models--x--y" / "snapshots" / commit / name)
    (fault,) = mixed(path)
    assert fault.level == "fail"
    assert f"{OTHER[:12]} ({SECOND})" in fault.message


def test_a_snapshot_of_the_cache_is_of_one_commit(make, tmp_path):
    """Its files are links to blobs, which are of no commit."""
    path = make(tmp_path / "models--x--y" / "snapshots" / ONE)
    (tmp_path / "models--x--y" / "blobs").mkdir()
    for number, file in enumerate(sorted(path.iterdir())):
        blob = tmp_path / "models--x--y" / "blobs" / str(number)
        file.rename(blob)
        file.symlink_to(f"../../blobs/{number}")
    contents = inspect(path).contents
    assert contents.faults == ()
    assert len(contents.tensors) == 2


def test_shards_of_two_totals_in_one_index(tmp_path):
    tensors = {"a.weight": ("F16", (8,)), "b.weight": ("F16", (8,))}
    path = write(tmp_path / "m", tensors, {}, shards=2)
    other = "model-00002-of-00003.safetensors"
    (path / SECOND).rename(path / other)
    index = path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(SECOND, other))
    (fault,) = mixed(path)
    assert (fault.level, fault.found) == ("fail", "of 2 and of 3")
