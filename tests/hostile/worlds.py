"""A world for attempts: a victim with a home worth stealing, a project, and what must stay as it is.

The victim is root or somebody else, and has bubblewrap or Landlock alone. Commands are really started, as
that user, by the console script that an installation makes. What no attempt may ever do is checked for all of
them in one place (`World.check`).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.text.test_terminal import is_harmless
from tests.work import PATIENCE_S
from tools.tidy import ROOT

NOBODY, SOMEBODY = 65534, 65533
CANARY = "CANARY-7f3a91c2"
STATUSES = {0, 1, 2, 3, 4, 5, 6, 7}
RESULTS = ("run", "watch", "resume", "fork", "retry")
NEEDED = "sh cat env touch git ls sleep mkdir id ln mv cp rm chmod setpriv python3 unshare ip".split()


class Setting(NamedTuple):
    """Who the victim is, and which sandbox there is."""

    user: str
    level: str


class Said(NamedTuple):
    arguments: tuple[str, ...]
    status: int
    out: str
    err: str


@cache
def installation(uid: int) -> str | None:
    """The console script as this user can start it; None where no interpreter of ours is theirs to run."""
    if uid == os.geteuid():
        return str(Path(sys.executable).parent / "fanfold")
    python = _interpreter(uid)
    if python is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="fanfold-installed-"))
    folder.chmod(0o755)
    packages = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python3").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(python).parent}\ninclude-system-site-packages = false\n"
    )
    (packages / "fanfold.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_paths()['purelib']}\n")
    script = folder / "bin/fanfold"
    script.write_text(
        f"#!{folder}/bin/python3\nimport sys\nfrom fanfold.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return str(script)


def _interpreter(uid: int) -> str | None:
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        ask = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            ended = subprocess.run([*become(uid), *ask], capture_output=True, text=True, check=False)
        except OSError:
            return None
        if ended.stdout.split() == [str(part) for part in sys.version_info[:2]]:
            return candidate
    return None


def become(uid: int) -> list[str]:
    """What setpriv itself executes may still have root's capabilities; what `env` executes has not."""
    if uid == os.geteuid():
        return []
    setpriv, env = (shutil.which(name) or name for name in ("setpriv", "env"))  # not those of a victim's PATH
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", env]


@cache
def without_bubblewrap() -> str:
    """A PATH with what attempts need, and no bwrap."""
    folder = Path(tempfile.mkdtemp(prefix="fanfold-tools-"))
    folder.chmod(0o755)
    for name in NEEDED:
        if found := shutil.which(name, path=f"/usr/bin:/bin:/usr/sbin:/sbin:{os.environ['PATH']}"):
            (folder / name).symlink_to(os.path.realpath(found))
    return str(folder)


class World:
    """One victim and what surrounds them. `close` takes it away."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.uid = 0 if setting.user == "root" else NOBODY if os.geteuid() == 0 else os.geteuid()
        self.top = Path(os.path.realpath(tempfile.mkdtemp(prefix="fanfold-world-")))
        self.top.chmod(0o755)
        self.home, self.project, self.outside = (self.top / name for name in ("home", "project", "outside"))
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.reached = 0
        threading.Thread(target=self._listen, daemon=True).start()
        self.said: list[Said] = []
        for folder, files in (
            (self.home, (".ssh/id", ".netrc", ".bashrc", ".config/token", ".gitconfig")),
            (self.outside, ("secret", "folder/file", "agents/scout.toml", "agents/scout.md")),
        ):
            self.write(folder, dict.fromkeys(files, f"# {CANARY}\n"))
        (self.home / ".fanfold").mkdir(mode=0o700)
        self.write(self.project, {"one.yaml": RECIPE, "script.yaml": SCRIPT, "a.txt": "a\n"})
        self.environment = {
            "PATH": f"{without_bubblewrap()}" if setting.level == "landlock" else os.defpath + ":/usr/sbin",
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "GITHUB_TOKEN": f"token-{CANARY}",
            "AWS_SECRET_ACCESS_KEY": f"key-{CANARY}",
            "API_KEY_2": f"key-{CANARY}",
            "MYSQL_PWD": CANARY,
            "DATABASE_URL": f"postgres://me:{CANARY}@host/db",
            "SSH_AUTH_SOCK": f"/tmp/{CANARY}/agent",
        }
        self._before: list[tuple[str, int, int, int, bytes]] = []

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.reached += 1
            connection.close()

    # ------------------------------------------------------------------------------------ planting

    def filled(self, text: str) -> str:
        """With places put in where an attempt names them: @outside@, @home@, @top@, @port@, @project@."""
        for name in ("outside", "home", "top", "port", "project"):
            text = text.replace(f"@{name}@", str(getattr(self, name)))
        return text

    def write(self, top: Path, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            file = top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.filled(text))

    def link(self, links: Mapping[str, str]) -> None:
        for name, target in links.items():
            file = self.project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.symlink_to(self.filled(target))

    def own(self) -> None:
        """Give everything to the victim, and remember how it all was."""
        if os.geteuid() == 0:
            for here, folders, files in os.walk(self.top):
                for name in (".", *folders, *files):
                    path = os.path.join(here, name)
                    if os.lstat(path).st_uid == 0:
                        os.chown(path, self.uid, self.uid, follow_symlinks=False)
        self._before = self.look()

    def git(self, *arguments: str, folder: Path | None = None) -> None:
        settings = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "safe.directory=*"]
        subprocess.run(
            ["git", *settings, *arguments], cwd=folder or self.project, check=True, capture_output=True
        )

    # ------------------------------------------------------------------------------------ carrying out

    def fanfold(self, *arguments: str, behind: Sequence[str] = (), **environment: str) -> Said:
        """A command of the victim's; `behind` is a program that starts it."""
        script = installation(self.uid)
        assert script is not None
        command = [*behind, script, *(self.filled(word) for word in arguments)]
        ended = self.execute(command, self.uid, environment)
        said = Said(arguments, ended.returncode, ended.stdout, ended.stderr)
        self.said.append(said)
        return said

    def execute(
        self, argv: Sequence[str], uid: int, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run something as a user, in the project."""
        return subprocess.run(
            [*become(uid), *argv],
            cwd=self.project,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    # ------------------------------------------------------------------------------------- judging

    def look(self) -> list[tuple[str, int, int, int, bytes]]:
        """Everything but the project and what Fanfold keeps for this user: types, modes, owners, contents."""
        found = []
        for here, folders, files in os.walk(self.top):
            if Path(here) in (self.top, self.home):
                folders[:] = [name for name in folders if name not in ("project", ".fanfold", "free")]
            for name in sorted((*folders, *files)):
                path = os.path.join(here, name)
                status = os.lstat(path)
                content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
                found.append((path, status.st_mode, status.st_uid, status.st_mtime_ns, content))
        return sorted(found)

    def check(self, *, may_connect: bool = False) -> None:
        """What no attempt may do, whoever makes it."""
        told = "\n".join(
            f"$ fanfold {' '.join(s.arguments)}\n[{s.status}]\n{s.out}{s.err}" for s in self.said
        )
        for said in self.said:
            assert said.status in STATUSES, told
            assert not re.search(r"Traceback.*/fanfold/", said.err + said.out, re.DOTALL), told
            # What a run gave goes to a program as it is; at a terminal it does not (`test_terminal_views`).
            for stream in (said.err,) if said.arguments[0] in RESULTS else (said.out, said.err):
                bad = {char for char in stream if not is_harmless(char)}
                assert not bad, f"{bad} reached the terminal: {told}"
        assert CANARY not in told, told
        after = self.look()
        changed = [row for row in (*after, *self._before) if (row in after) != (row in self._before)]
        assert not changed, f"{changed}\n{told}"
        assert self.spilt() == [], told
        assert may_connect or not self.reached, f"somebody connected to the outside: {told}"
        assert self.open_to_others() == [], told

    def spilt(self) -> list[str]:
        """Files of the project and of Fanfold's that hold what was secret."""
        found = []
        for top in (self.project, self.home / ".fanfold"):
            for here, _, files in os.walk(top):
                for name in files:
                    path = Path(here, name)
                    status = path.lstat()  # an overlay leaves empty files that only root may read
                    if (
                        stat.S_ISREG(status.st_mode)
                        and status.st_size
                        and CANARY.encode() in path.read_bytes()
                    ):
                        found.append(str(path))
        return found

    def open_to_others(self) -> list[str]:
        """State that others could read or write. Nobody gets beneath a folder that is closed to them."""
        own = self.project / ".fanfold"
        if not (own / "state.seal").is_file() or own.is_symlink() or matches("state.foreign", self.said):
            return []
        return [str(own)] if stat.S_IMODE(own.stat().st_mode) & 0o077 else []

    def close(self) -> None:
        self.server.close()
        for here, folders, _ in os.walk(self.top):
            for name in folders:
                if not os.path.islink(os.path.join(here, name)):
                    os.chmod(os.path.join(here, name), 0o700)
        shutil.rmtree(self.top, ignore_errors=True)


def matches(pattern: str, said: Sequence[Said]) -> bool:
    """Whether a refusal was put into words somewhere."""
    return re.search(pattern, "\n".join(one.out + one.err for one in said), re.DOTALL) is not None


RECIPE = "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: hello}\n"
SCRIPT = "default: done\n"
