"""Whether the database is still where it was opened, and whether a database may be there at all.

Rules
* A file that was removed or replaced (`git clean -fdx`, a restored backup) can still be written by whoever
  has it open, and nobody will ever read it. So after each commit the names are looked up again: what the
  caller is told was stored can be found by the next process.
* On a network file system neither the locks nor the shared memory of SQLite hold between machines, and a
  lease counts by the clock of one machine: such a project is refused before anything is made.
* Only a file is opened: who opens a pipe that stands in its place waits for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fanfold.store.protocol import StoreFault

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs fhgfs gfs gfs2 glusterfs gpfs lustre ncpfs ndfs nfs nfs4 ocfs2"
    " orangefs panfs prl_fs pvfs2 smb2 smb3 smbfs vboxsf vmhgfs".split()
)
NETWORK_OVER_FUSE = frozenset(
    "afp blobfuse blobfuse2 ceph-fuse cephfs curlftpfs davfs2 gcsfuse gluster glusterfs goofys gvfsd-fuse"
    " hdfs juicefs mfs moosefs rclone s3fs seaweedfs smbnetfs sshfs vmhgfs-fuse".split()
)
"""What is local over FUSE (fuse-overlayfs, ntfs-3g, bindfs, virtual machines' virtiofs) may be used."""


class Presence:
    """The files of a database that this process has open."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[str, tuple[int, int]] = {}
        self.log: os.stat_result | None = None
        """The write-ahead log when it was last looked at."""
        self.check()

    def check(self) -> None:
        """Raise `StoreFault` when a file is gone or another one stands in its place."""
        for name in (self._file, f"{self._file}-wal"):
            try:
                found = os.stat(name)
            except OSError:
                if name in self._known:
                    raise self._gone() from None
                continue  # the write-ahead log is made with the first write
            identity = found.st_dev, found.st_ino
            if self._known.setdefault(name, identity) != identity:
                raise self._gone()
            if name != self._file:
                self.log = found

    def _gone(self) -> StoreFault:
        now = self._moved_to()
        if now:
            return StoreFault(
                "store.gone",
                f"{self._file} was moved to {now} while it was in use",
                hint="nothing of it is lost: move the folder back, or take it over in the new one:"
                " fanfold state adopt; then fanfold runs lists what can be resumed",
                details={"file": self._file, "now": now},
            )
        return StoreFault(
            "store.gone",
            f"{self._file} was removed or replaced while it was in use: what was stored there is lost",
            hint="start the run again; keep .fanfold out of the way of git clean -x and the like",
            details={"file": self._file},
        )

    def _moved_to(self) -> str:
        """Where the database is now, if its folder was moved: the system knows what we have open by name."""
        for handle in _listed("/proc/self/fd"):
            try:
                name = os.readlink(f"/proc/self/fd/{handle}")
                found = os.stat(name)
            except OSError:
                continue
            is_it = (found.st_dev, found.st_ino) == self._known.get(self._file)
            if is_it and name != self._file and os.path.basename(name) == os.path.basename(self._file):
                return name
        return ""


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def refuse_special(file: str) -> None:
    """Raise `StoreFault` where a pipe, a device or a folder stands in the place of a file of the database."""
    for name in (file, f"{file}-wal", f"{file}-shm", f"{file}-journal"):
        try:
            mode = os.stat(name).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise StoreFault(
                "store.foreign",
                f"{name} is not a file",
                hint="move it away; Fanfold then starts a new database, without the runs of this one",
                details={"file": name},
            )


def refuse_network(folder: Path) -> None:
    """Raise `StoreFault` where a database cannot be kept; the folder need not exist yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    kind = file_system(there)
    if kind is None or not is_network(kind):
        return
    raise StoreFault(
        "store.network",
        f"{folder} is on a network file system ({kind}), where runs would not be safe",
        hint="keep the project on a disk of this machine",
        details={"folder": str(folder), "file_system": kind},
    )


def file_system(folder: Path) -> str | None:
    """What kind of file system holds a folder, where the system tells: `ext4`, `nfs4`, `fuse.sshfs`."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split(" ", 3)[2] == wanted:
            return kind.split(" ", 1)[0]
    return None


def is_network(kind: str) -> bool:
    """Whether other machines may write the same files.

    >>> [is_network(kind) for kind in ("nfs4", "fuse.sshfs", "ext4", "fuse.fuse-overlayfs", "virtiofs")]
    [True, True, False, False, False]
    """
    base, _, above = kind.partition(".")
    return base in NETWORK or (base == "fuse" and above in NETWORK_OVER_FUSE)
