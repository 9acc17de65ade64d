"""What a user may set is what the roles document."""

from pathlib import Path

import pytest
import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def read(path):
    return yaml.safe_load(path.read_text())


PLAY = read(PLAYBOOKS / "site.yml")[0]
ROLES = [role["role"] for role in PLAY["roles"]]


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_documented_and_named_after_its_role(role):
    directory = PLAYBOOKS / "roles" / role
    options = read(directory / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(read(directory / "defaults/main.yml")) <= set(options)
    assert all(name.startswith(f"{role}_") for name in options)
    assert all(option["type"] and option["description"] for option in options.values())


def test_the_play_validates_every_role_before_the_first_one_acts():
    # The first role validates itself before it acts.
    assert PLAY["pre_tasks"][0]["loop"] == ROLES[1:]
