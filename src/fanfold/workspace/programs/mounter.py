"""A short-lived program that mounts an overlay in a separate user namespace, which other processes keep open.

Run as `python -I -S mounter.py READ_ONLY UPPER WORK TARGET LOWER…`. It prints `ok` or an error, waits until
its input ends, and exits. A process that opened its namespaces meanwhile keeps them alive. No mount can be
left behind, and no privilege is needed.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 16384, 1 << 18


def open_up(work: str) -> None:
    """Give the owner access to the folders that the kernel created in an overlay's `work`."""
    for name in ("work", "work/incompat", "work/incompat/volatile"):
        try:
            os.chmod(f"{work}/{name}", 0o700)
        except OSError:
            return  # other kernels have other folders


def main(read_only: str, upper: str, work: str, target: str, *lower: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, what: str) -> None:
        if result < 0:
            sys.stdout.write(f"{what}: {os.strerror(ctypes.get_errno())}\n")
            sys.stdout.flush()
            os._exit(1)

    user, group = os.getuid(), os.getgid()
    handles = [os.open(folder, os.O_PATH) for folder in (upper, work, *lower)]
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    checked(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private")
    # The handles must be opened again: a mount requires folders of its own namespace.
    for handle in handles:
        os.close(handle)
    handles = [os.open(folder, os.O_PATH) for folder in (upper, work, *lower)]
    up, wo, *low = (f"/proc/self/fd/{handle}" for handle in handles)
    options = f"lowerdir={':'.join(low)},upperdir={up},workdir={wo},userxattr,index=off,metacopy=off,volatile"
    flags = ctypes.c_ulong(MS_RDONLY if read_only == "1" else 0)
    checked(libc.mount(b"overlay", os.fsencode(target), b"overlay", flags, options.encode()), "overlay")
    open_up(wo)
    sys.stdout.write("ok\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
