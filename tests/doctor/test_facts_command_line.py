"""Command lines: programs, flags under one name, and no secrets."""

import pytest

from volta_doctor.facts.serve.command_line import (
    allowed,
    hidden,
    options,
    without_secrets,
)
from volta_doctor.facts.serve.engines import ENGINES, Flags, read_flags, recognise


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("vllm serve m --api-key s3cret --port 1", "vllm serve m --api-key *** --port 1"),
        ("vllm serve m --api-key s3cret other", "vllm serve m --api-key *** ***"),
        ("vllm serve m --api_key=s3cret", "vllm serve m --api_key=***"),
        ("lmdeploy serve api_server m --api-keys a b --tp 2", "... --api-keys *** *** --tp 2"),
        ("vllm serve m --hf-token hf_x", "vllm serve m --hf-token ***"),
        ("env HF_TOKEN=hf_x vllm serve m", "env HF_TOKEN=*** vllm serve m"),
        ("x --otlp-traces-endpoint http://u:p@h:1/v", "x --otlp-traces-endpoint http://***@h:1/v"),
        ("llama-server -m m.gguf -hft s3cret", "llama-server -m m.gguf -hft ***"),
        ("x --otlp http://h/?api_key=s3cret&a=1", "x --otlp http://h/?api_key=***&a=1"),
        ("x --url s3://key:s3/cret@h", "x --url s3://***@h"),
        ("vllm serve m s3cret --pass=s3cret", "vllm serve m s3cret --pass=***"),
        ("x hf_aBcDeFgHiJkLmNoPqRsTuV", "x ***"),
        ("x org/hf_quantized-model-with-a-long-name", "x org/hf_quantized-model-with-a-long-name"),
        ("x --max-num-batched-tokens 8", "x --max-num-batched-tokens 8"),
        ("x --max-total-tokens=8 --key-seq=1", "x --max-total-tokens=8 --key-seq=***"),
        ("x --tokenizer org/t --skip-tokenizer-init", "x --tokenizer org/t --skip-tokenizer-init"),
    ],
)
def test_secrets_are_hidden_and_nothing_else(line, shown):
    assert " ".join(without_secrets(line.split())).endswith(shown.removeprefix("..."))


def test_secrets_in_json_are_hidden():
    (word,) = without_secrets(['{"role": "a", "auth_token": "s3cret"}'])
    assert word == '{"role": "a", "auth_token": "***"}'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'password': 's3 cret', 'x': 1}", "{'password': '***', 'x': 1}"),
        ('{"api_keys": ["s3cret", "b"]}', '{"api_keys": ***}'),
        ('{"tokenizer": "org/t", "max_tokens": 8}', '{"tokenizer": "org/t", "max_tokens": 8}'),
        ("Authorization: Bearer s3cret", "Authorization: ***"),
        ("x Bearer s3cret", "x Bearer ***"),
        ("https://h/o?X-Amz-Signature=s3cret&x=1", "https://h/o?X-Amz-Signature=***&x=1"),
        ("https://u:p@ss@h/v?x=a@b", "https://***@h/v?x=a@b"),
    ],
)
def test_secrets_inside_a_word_are_hidden(text, shown):
    assert hidden(text) == shown


def test_the_environment_is_an_allowlist_without_secrets():
    env = {
        "CUDA_VISIBLE_DEVICES": "0",
        "VLLM_API_KEY": "s3cret",
        "VOLTA_SERVE_API_KEY": "s3cret",
        "NVIDIA_TOKEN": "s3cret",
        "VLLM_PAT": "s3cret",
        "VLLM_S3_CRED": "s3cret",
        "VLLM_USAGE_STATS_SERVER": "http://u:s3cret@h/",
        "HOME": "/root",
        "MAIL": "/var/mail/root",
        "PGPASSWORD": "s3cret",
    }
    kept = allowed(env)
    assert sorted(kept) == ["CUDA_VISIBLE_DEVICES", "HOME", "VLLM_USAGE_STATS_SERVER"]
    assert "s3cret" not in repr(kept)


def test_options_in_every_form():
    positional, found = options(
        [
            "m",
            "--a_b",
            "1",
            "--c=2",
            "-tp",
            "4",
            "--flag",
            "--no-x",
            "--n=-1",
            "--j",
            '{"k_l": {"m": 1}}',
        ]
    )
    assert positional == ["m"]
    assert found == {
        "a-b": "1",
        "c": "2",
        "tp": "4",
        "flag": "true",
        "no-x": "true",
        "x": "false",
        "n": "-1",
        "j.k-l.m": "1",
    }


def flags(line, env=None):
    engine, words = recognise(line.split())
    found, wrong = read_flags(engine, words, env or {}, {})
    assert not wrong
    return engine.name, found


@pytest.mark.parametrize(
    ("line", "env", "engine", "expected"),
    [
        (
            "/v/bin/python3 -u /v/bin/vllm serve --enforce-eager org/m --max-model-len 8k -q awq",
            {},
            "vllm",
            Flags(model="org/m", enforce_eager=True, max_model_len=8000, quantization="awq"),
        ),
        (
            'vllm serve m --compilation-config {"cudagraph_mode":"NONE"} --max-model-len auto',
            {},
            "vllm",
            Flags(model="m", enforce_eager=True),
        ),
        (
            "vllm serve m -cc.cudagraph_mode=PIECEWISE -ac.backend=TRITON_ATTN --no-enforce-eager",
            {},
            "vllm",
            Flags(model="m", attention_backend="TRITON_ATTN"),
        ),
        (
            "python -m lmdeploy serve api_server org/m --tp 4 --session-len 65536"
            " --cache-max-entry-count 0.8 --server-port 23333",
            {},
            "lmdeploy",
            Flags(model="org/m", tensor_parallel_size=4, max_model_len=65536, port=23333),
        ),
        (
            "sglang serve --model-path m --tp-size 2 --context-length 4096 --disable-cuda-graph",
            {},
            "sglang",
            Flags(model="m", tensor_parallel_size=2, max_model_len=4096, enforce_eager=True),
        ),
        (
            "./build/bin/llama-server -hf org/m:Q4_K_M -c 0 -np 4 -ctk q8_0",
            {"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_PORT": "8081"},
            "llamacpp",
            Flags(
                model="org/m:Q4_K_M",
                max_num_seqs=4,
                kv_cache_dtype="q8_0",
                port=8081,
            ),
        ),
        (
            "/usr/local/bin/ollama serve",
            {"OLLAMA_CONTEXT_LENGTH": "8192"},
            "ollama",
            Flags(max_model_len=8192),
        ),
        (
            "text-generation-launcher --num-shard 2 --cuda-graphs 0",
            {"MODEL_ID": "org/m", "NUM_SHARD": "4"},
            "tgi",
            Flags(model="org/m", tensor_parallel_size=2, enforce_eager=True),
        ),
        (
            "/opt/volta/current/venv/bin/volta-serve serve --port 9000",
            {"VOLTA_SERVE_PORT": "8000", "VOLTA_SERVE_DEVICE": "cpu", "VOLTA_SERVE_MODEL": "/m"},
            "embedded",
            Flags(model="/m", device="cpu", port=9000),
        ),
    ],
)
def test_each_engines_flags(line, env, engine, expected):
    assert flags(line, env) == (engine, expected)


@pytest.mark.parametrize(
    "line",
    [
        "vllm bench serve",
        "vim vllm serve",
        "grep -r llama-server",
        "python -c vllm serve",
        "",
        "ollama run m",
    ],
)
def test_what_is_no_server(line):
    assert recognise(line.split()) is None


def test_every_engine_has_flags_of_ours_only():
    known = set(Flags.__struct_fields__)
    for engine in ENGINES:
        assert set(engine.flags) | set(engine.env) <= known, engine.name
