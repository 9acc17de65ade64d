import json
from datetime import datetime

import pytest

from volta_runtime.engine import Tokenizer
from volta_runtime.engine.chat import ChatTemplate
from volta_runtime.errors import ModelError, RequestError

USER = [{"role": "user", "content": "<b>é</b>"}]


def test_renders_messages_and_special_tokens():
    source = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m.content }}{% endfor %}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(USER) == "<s>user: <b>é</b>"


def test_blocks_leave_no_blank_lines():
    assert (
        ChatTemplate("{% if true %}\n  {% set x = 1 %}\nx\n{% endif %}\n", {}).render([]) == "x\n"
    )


def test_hugging_face_helpers():
    template = "{{ messages | tojson }} {{ strftime_now('%Y') }}{% for m in messages %}{% break %}"
    found = ChatTemplate(template + "{% endfor %}", {}).render(USER)
    assert found == f"{json.dumps(USER, ensure_ascii=False)} {datetime.now().year}"


def test_a_template_may_refuse():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(RequestError, match="roles must alternate") as raised:
        template.render(USER)
    assert raised.value.param == "messages"


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_is_confined(source):
    with pytest.raises(RequestError, match="unsafe"):
        ChatTemplate(source, {}).render(USER)


def test_a_broken_template_names_its_line():
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("\n{% if %}", {})


def test_files_of_a_checkpoint(make_tiny):
    directory = make_tiny()
    (directory / "chat_template.jinja").write_text("from the file")
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = Tokenizer(directory)
    assert tokenizer.chat_template.render([]) == "from the file"
    assert tokenizer.eos_token_ids == {0, 2}


def test_a_damaged_tokenizer_is_named(make_tiny):
    directory = make_tiny()
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer(directory)
