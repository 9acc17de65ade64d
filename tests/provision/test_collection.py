"""The playbooks as the collection volta.stack: complete, usable from anywhere, and documented."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import tomllib
import yaml
from packaging.specifiers import SpecifierSet

REPO = Path(__file__).parents[2]
PLAYBOOKS = REPO / "playbooks"
ROLES = sorted(path.name for path in (PLAYBOOKS / "roles").iterdir())
MODULES = sorted(
    path.name for path in (REPO / "provision/volta_provision/modules").glob("volta_*.py")
)
# These need what a control node may not have, or are about files that are not here.
SANITY_WITHOUT = ["changelog", "pslint", "pylint", "shellcheck"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs one of Ansible's commands away from the checkout."""
    home = tmp_path_factory.mktemp("home")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment = plain | {
        "HOME": str(home),
        "ANSIBLE_COLLECTIONS_PATH": str(home / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_REMOTE_TMP": str(home / "tmp"),
        "LC_ALL": "C.UTF-8",
    }

    def run(command, *arguments, cwd=home):
        result = subprocess.run(
            [Path(sys.executable).with_name(command), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run.home = home
    return run


@pytest.fixture(scope="module")
def collection(run):
    """The collection, built from the checkout and installed elsewhere; returns its directory."""
    run("ansible-galaxy", "collection", "build", f"--output-path={run.home}", cwd=PLAYBOOKS)
    (archive,) = run.home.glob("volta-stack-*.tar.gz")
    run("ansible-galaxy", "collection", "install", "--offline", str(archive))
    return run.home / "collections/ansible_collections/volta/stack"


def files(tree):
    """Return the files in a directory and in the directories that it links to."""
    walked = os.walk(tree, followlinks=True)
    return {Path(top, name).relative_to(tree) for top, _, names in walked for name in names}


def test_the_archive_holds_what_the_checkout_shows(collection):
    """A file that the checkout links to is a file there; a directory would be left out."""
    for role in ROLES:
        assert files(collection / "roles" / role) == files(PLAYBOOKS / "roles" / role)
    assert sorted(path.name for path in (collection / "plugins/modules").iterdir()) == MODULES
    assert not any(path.is_symlink() for path in collection.rglob("*"))
    assert not any((collection / name).exists() for name in ("ansible.cfg", "inventory", "library"))


def test_its_versions_are_the_project_s(collection):
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    galaxy = yaml.safe_load((PLAYBOOKS / "galaxy.yml").read_text())
    assert galaxy["version"] == project["version"]
    assert galaxy["license"] == [project["license"]]
    (core,) = (n for n in project["optional-dependencies"]["provision"] if "ansible-core" in n)
    requires = yaml.safe_load((collection / "meta/runtime.yml").read_text())["requires_ansible"]
    versions = [f"2.{minor}.0" for minor in range(14, 24)]
    wanted = SpecifierSet(core.removeprefix("ansible-core"))
    assert [*SpecifierSet(requires).filter(versions)] == [*wanted.filter(versions)]


def test_every_module_and_role_is_documented(run, collection):
    names = [f"volta.stack.{name.removesuffix('.py')}" for name in MODULES]
    modules = json.loads(run("ansible-doc", "--json", "--type=module", *names))
    assert all(module["doc"] and module["examples"] for module in modules.values())
    roles = json.loads(run("ansible-doc", "--json", "--type=role", "--list", "volta.stack"))
    assert sorted(roles) == [f"volta.stack.{role}" for role in ROLES]


def test_the_readme_leads_to_every_role_s():
    readme = (PLAYBOOKS / "README.md").read_text()
    assert sorted(set(re.findall(r"\(roles/(\w+)/README\.md\)", readme))) == ROLES
    assert [r for r in ROLES if not (PLAYBOOKS / "roles" / r / "README.md").exists()] == []


def test_a_play_elsewhere_uses_it_by_full_names(run, collection):
    """The README's example, on this machine."""
    readme = (PLAYBOOKS / "README.md").read_text()
    (play,) = yaml.safe_load(re.search(r"```yaml\n(.+?)```", readme, re.DOTALL)[1])
    play["tasks"].append({"ansible.builtin.import_role": {"name": "volta.stack.monitoring"}})
    (run.home / "play.yml").write_text(yaml.safe_dump([play | {"hosts": "localhost"}]))
    python = f"ansible_python_interpreter={sys.executable}"
    said = run("ansible-playbook", "play.yml", "--check", "--connection=local", "-e", python)
    assert "TASK [volta.stack.host : " in said
    assert "volta-doctor.timer" in said


def test_every_role_can_be_named_in_a_play_elsewhere(run, collection):
    plays = [{"hosts": "localhost", "roles": [f"volta.stack.{role}"]} for role in ROLES]
    (run.home / "roles.yml").write_text(yaml.safe_dump(plays))
    run("ansible-playbook", "roles.yml", "--syntax-check")


@pytest.mark.slow
def test_ansible_s_own_sanity_tests_pass(run, collection):
    """Of ansible-core, in environments of its own, which it fills from the package index."""
    internals = Path(find_spec("ansible_test").origin).parent / "_internal/python_requirements.py"
    pip = re.search(r"\bpip='([\d.]+)'", internals.read_text())[1]
    # It would download pip's installer from a place of Ansible's own; Python has one.
    bootstrap = run.home / f".ansible/test/cache/get_pip_{pip.replace('.', '_')}.py"
    bootstrap.parent.mkdir(parents=True)
    bootstrap.write_text("import ensurepip\n\nensurepip.bootstrap()\n")
    core = ".".join(metadata.version("ansible-core").split(".")[:2])
    ignored = collection / f"tests/sanity/ignore-{core}.txt"
    ignored.parent.mkdir(parents=True)
    # A module runs in a process of its own; the collection's licence is Apache-2.0.
    modules = [path.relative_to(collection) for path in collection.glob("plugins/modules/*.py")]
    ignored.write_text(
        "".join(f"{module} validate-modules:missing-gplv3-license\n" for module in modules)
    )
    version = "{}.{}".format(*sys.version_info[:2])
    skipped = [f"--skip-test={name}" for name in SANITY_WITHOUT]
    run("ansible-test", "sanity", f"--python={version}", *skipped, cwd=collection)
