"""Writes schema.json, the JSON Schema of a plan: python -m volta_provision.plan.schema."""

import json
from pathlib import Path

import msgspec

from volta_provision.plan.report import Plan

SCHEMA_JSON = Path(__file__).with_name("schema.json")


def schema_json() -> str:
    """Return the schema of `volta-stack plan --format json`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(schema | msgspec.json.schema(Plan), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_JSON.write_text(schema_json())
