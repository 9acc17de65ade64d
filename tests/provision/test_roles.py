"""What a user may set is what the roles document."""

import pytest
import yaml

ROLES = ("preflight", "release", "model", "service", "verify")


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_documented_and_named_after_its_role(repo, role):
    directory = repo / "playbooks/roles" / role
    options = read(directory / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(read(directory / "defaults/main.yml")) <= set(options)
    assert all(name.startswith(f"{role}_") for name in options)
    assert all(option["type"] and option["description"] for option in options.values())


def test_the_play_validates_every_role_before_the_first_one_acts(repo):
    play = read(repo / "playbooks/site.yml")[0]
    roles = [role["role"] for role in play["roles"]]
    assert roles == list(ROLES)
    # The first role validates itself before it acts.
    assert play["pre_tasks"][0]["loop"] == roles[1:]
