"""What notifications, schedules and reports of runs suggest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.suggestions.following import Fanfold, Follow
from tests.cli.suggestions.places import suggested

pytestmark = pytest.mark.full


@suggested("api/notifications.py: fanfold inspect")
def test_of_a_notice(shell: Fanfold, follow: Follow, agents: Path, tmp_path: Path) -> None:
    del agents
    seen, home = tmp_path / "seen", tmp_path / "home" / ".fanfold"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(f"[notify]\ncommand = ['sh', '-c', 'cat > {seen}']\n")
    assert shell("run", "my agents.yaml", "--script", "ok.yaml").status == 0
    follow(json.loads(seen.read_text())["command"], may=(0,))


@suggested("api/schedules.py: fanfold schedule list", "cli/schedule.py: fanfold serve")
def test_of_schedules(fanfold: Fanfold, follow: Follow, agents: Path) -> None:
    del agents
    words = ("schedule", "add", "daily", "my agents.yaml", "--cron", "@daily", "--script", "ok.yaml")
    follow(fanfold(*words).err, may=(0,))
    follow(fanfold("schedule", "remove", "none-such"), may=(0,))
