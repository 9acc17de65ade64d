"""Cases: files that are one case, judged as `volta-doctor why` judges them."""

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from volta_doctor.report import Report
from volta_doctor.why import answer


@pytest.fixture
def why(tmp_path: Path) -> Callable[[Mapping[str, str | bytes]], Report]:
    def judge(files: Mapping[str, str | bytes]) -> Report:
        for name, text in files.items():
            (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        paths = [str(tmp_path / name) for name in files]
        return answer.of(paths, datetime(2026, 1, 1, tzinfo=timezone.utc))

    return judge
