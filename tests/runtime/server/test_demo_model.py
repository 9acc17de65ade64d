"""The demo model, end to end; set VOLTA_DEMO_MODEL to its converted checkpoint's directory."""

import os

import openai
import pytest

MODEL = os.environ.get("VOLTA_DEMO_MODEL")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not MODEL, reason="VOLTA_DEMO_MODEL does not name the directory of the demo checkpoint"
    ),
]


def test_the_capital_of_france(start_server):
    server = start_server(MODEL)
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused")
    stream = sdk.chat.completions.create(
        model=sdk.models.list().data[0].id,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=40,
        stream=True,
    )
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert server.metric("process_resident_memory_bytes") < 1.2 * 2**30
