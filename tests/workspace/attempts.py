"""Attempts to leave a sandbox, as programs that raise when they are refused and return when they got out.

Each gets: project, outside (a folder beside the project), secret (a file there), engine (our pid), port, udp,
abstract, path_socket, datagrams (a socket in a folder too), home, key (of a shared memory segment), shared (a file of such memory), system (a file of the system, or for root a
disposable one in a folder that is visible inside), terminal (of the user), data (a folder at the top of
the machine with a socket, a pipe and a secret, where root could make one), call(number, *arguments) for raw system calls.

An attempt that gets out must do no harm: a sandbox that fails is what these look for, and they run on
people's machines. So settings are written with the value they have, and files of the system are never root's to lose.
"""

# ruff: noqa: E501 - an attempt reads best in one line

PRELUDE = r"""
import ctypes, errno, fcntl, json, os, platform, resource, signal, socket, stat, struct, subprocess, sys, time
given_handles = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
globals().update(json.loads(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def write(path, text="evil"):
    with open(path, "w") as file:
        file.write(text)
def read(path):
    with open(path, "rb") as file:
        return file.read()
def rewrite(path):
    # Write a setting as it is: proves the way out and changes nothing.
    with open(path) as file:
        text = file.read()
    write(path, text)
DISKS = ("/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0")
def refuse_unless(condition):
    if not condition:
        raise PermissionError("did not get out")
def reaches_kernel(request, number, *argument):
    # A request on something that is only open for reading: only the filter answers EPERM.
    try:
        request(os.open(os.path.dirname(system), os.O_RDONLY), number, *argument)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
def inherited(path):
    # A path of the host from every handle that this process did not open, or that another one left open.
    for process in filter(str.isdigit, os.listdir("/proc")):
        if own_pid_namespace or process == str(os.getpid()):
            for handle in os.listdir(f"/proc/{process}/fd"):
                place = f"/proc/{process}/fd/{handle}"
                if os.path.isdir(place) and os.path.lexists(f"{place}/{'../' * 30}{path.lstrip('/')}"):
                    return f"{place}/{'../' * 30}{path.lstrip('/')}"
    raise PermissionError("no handle of a folder")
"""

ATTEMPTS = {
    # ------------------------------------------------------------------------------------- paths
    "write to /etc": 'write("/etc/fanfold-was-here")',
    "write to /usr": 'write("/usr/bin/fanfold-was-here")',
    "make a folder in /": 'os.mkdir("/fanfold-was-here")',
    "read a secret beside the project": "read(secret)",
    "write beside the project": 'write(outside + "/new") ; refuse_unless(os.path.exists(secret))',
    "overwrite a secret": "refuse_unless(os.path.exists(secret)); write(secret)",
    "go up with dots": 'read("../" * 20 + secret.lstrip("/"))',
    "list the home": 'refuse_unless(".netrc" in os.listdir(home))',
    "read the home": 'read(home + "/.netrc")',
    "empty a file of the system": "os.truncate(system, 0)",
    "rename a file of the system": 'os.rename(system, system + ".old")',
    "delete a file of the system": "os.unlink(system)",
    "change a mode outside": "os.chmod(system, 0o777)",
    "change an owner outside": "os.chown(system, 1, 1)",
    "set an attribute outside": 'os.setxattr(system, "user.x", b"y")',
    "append to a log of the system": 'open("/var/log/fanfold-was-here", "a")',
    # ------------------------------------------------------------------------------------- links
    "write through a link": 'os.symlink("/etc", "out"); write("out/fanfold-was-here")',
    "read through a link": 'os.symlink(secret, "peek"); read("peek")',
    "hard link to a file of the system": 'os.link(system, "linked"); open("linked", "a").close()',
    "hard link out of the workspace": 'write("mine"); os.link("mine", "/etc/fanfold-was-here")',
    "move out of the workspace": 'write("mine"); os.rename("mine", outside + "/moved"); refuse_unless(os.path.exists(secret))',
    "through /proc/self/root": 'write("/proc/self/root/etc/fanfold-was-here")',
    "through /proc/self/cwd": 'read("/proc/self/cwd/" + "../" * 20 + secret.lstrip("/"))',
    "through a swapped folder": """
os.mkdir("swap")
os.symlink("/etc", "swapped")
for _ in range(200):
    os.rename("swap", "aside"); os.rename("swapped", "swap")
    try:
        write("swap/fanfold-was-here")
        break
    except OSError:
        os.rename("swap", "swapped"); os.rename("aside", "swap")
else:
    refuse_unless(False)
""",
    # ------------------------------------------------------------------- what programs are told by
    "plant a hook": 'write(project + "/.git/hooks/pre-commit")',
    "change git's configuration": 'write(project + "/.git/config")',
    "move git's head": 'write(project + "/.git/HEAD")',
    "replace git's folder": 'os.rename(project + "/.git", project + "/.old")',
    "write Fanfold's configuration": 'write(project + "/.fanfold/config.toml")',
    "read Fanfold's database": 'read(project + "/.fanfold/fanfold.db")',
    "see other workspaces": 'refuse_unless(os.listdir(project + "/.fanfold/subagents"))',
    "write a role of Codex": 'write(project + "/.codex/agents/reviewer.toml")',
    "write a role of Claude": 'write(project + "/.claude/agents/reviewer.md")',
    "write the parent's dependencies": 'write(project + "/node_modules/evil.js")',
    "commit": 'refuse_unless(subprocess.run(["git", "-C", project, "commit", "--allow-empty", "-qm", "x"]).returncode == 0)',
    # ----------------------------------------------------------------------------------- devices
    "make a device": 'os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)); open("disk", "rb")',
    "read the memory": 'open("/dev/mem", "rb")',
    "read the kernel's messages": 'open("/dev/kmsg", "rb")',
    "read a disk": "refuse_unless(any(os.path.exists(disk) for disk in DISKS)); next(os.open(disk, os.O_RDONLY) for disk in DISKS if os.path.exists(disk))",
    "read what another terminal of the machine shows": 'os.open("/dev/vcs", os.O_RDONLY)',
    "read memory that programs share": "refuse_unless(shared); read(shared)",
    "type into a terminal": """
import pty
_, tty = pty.openpty()
fcntl.ioctl(tty, 0x5412, b"x")
""",
    "read what the user types": "refuse_unless(terminal); os.open(terminal, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)",
    "write onto the user's terminal": 'refuse_unless(terminal); os.write(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), b"x")',
    "open another terminal beside the user's": "refuse_unless(os.path.exists(terminal)); os.open(terminal, os.O_RDWR | os.O_NOCTTY)",
    # ------------------------------------------------------- attributes, sockets, pipes of the outside
    "mark a file outside": 'fcntl.ioctl(os.open(system, os.O_RDONLY), 0x40086602, struct.pack("l", 0x40))',
    "mark a file outside by its extended flags": "fcntl.ioctl(os.open(system, os.O_RDONLY), 0x401C5820, bytes(28))",
    "mark a file outside by the newest call": "call(469, -100, system.encode(), bytes(24), 24, 0)",
    "mark the generation of a file outside": "reaches_kernel(fcntl.ioctl, 0x40087602, bytes(8))",
    "mark the generation of a file outside, as a short number": "reaches_kernel(fcntl.ioctl, 0x40047602, bytes(4))",
    "mark the generation by the file system's own request": "reaches_kernel(fcntl.ioctl, 0x40086604, bytes(8))",
    "seal a file outside against changes": "reaches_kernel(fcntl.ioctl, 0x40806685, bytes(128))",
    "encrypt a folder outside": "reaches_kernel(fcntl.ioctl, 0x800C6613, bytes(12))",
    "make a volume in a folder outside": "reaches_kernel(fcntl.ioctl, 0x5000940E, bytes(64))",
    "delete a volume in a folder outside": "reaches_kernel(fcntl.ioctl, 0x5000940F, bytes(64))",
    "make a volume read-only outside": "reaches_kernel(fcntl.ioctl, 0x4008941A, bytes(8))",
    "pin a file outside": "reaches_kernel(fcntl.ioctl, 0x4004F50D, bytes(4))",
    "watch a folder outside by signals": "reaches_kernel(fcntl.fcntl, 1026, 0x8000003F)",
    "watch the workspace's parent by signals": 'fcntl.fcntl(os.open("..", os.O_RDONLY), 1026, 0x8000003F)',
    "delay whoever writes a file of the system": "fcntl.fcntl(os.open(system, os.O_RDONLY), 1024, 0)",
    "delay whoever opens a file of one's own": 'write("mine"); fcntl.fcntl(os.open("mine", os.O_RDWR), 1024, 1)',
    "delay whoever changes a folder outside": "reaches_kernel(fcntl.fcntl, 1040, bytes(8))",
    # ------------------------------------------------------------------------ handles of the host
    "read a secret from a handle that was left open": "read(inherited(secret))",
    "read the home from a handle that was left open": 'read(inherited(home + "/.netrc"))',
    "write beside the project from a handle that was left open": 'write(inherited(outside) + "/new")',
    "write the home from a handle that was left open": 'open(inherited(home + "/.netrc"), "a")',
    "read Fanfold's database from a handle that was left open": 'refuse_unless(b"CANARY" in read(inherited(project + "/.fanfold/fanfold.db")))',
    "leave by a handle that was left open": 'os.chdir(inherited(outside)); read("secret")',
    "be given any handle but the standard streams": "refuse_unless([handle for handle in given_handles if handle > 2])",
    "have a file of the host as a standard stream": "refuse_unless([handle for handle in (0, 1, 2) if stat.S_ISREG(os.fstat(handle).st_mode)])",
    "talk to a socket at the top of the machine": "refuse_unless(data); socket.socket(socket.AF_UNIX).connect(data + '/socket')",
    "send to a socket in a folder from a pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', datagrams)",
    "connect half a pair to a socket in a folder": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].connect(datagrams)",
    "send from a pair that calls itself raw": "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', datagrams)",
    "watch who opens what outside": "checked(libc.inotify_add_watch(libc.inotify_init(), outside.encode(), 0xFFF))",
    "fill a pipe at the top of the machine": "refuse_unless(data); os.write(os.open(data + '/pipe', os.O_RDWR | os.O_NONBLOCK), b'x')",
    "read data at the top of the machine": "refuse_unless(data); read(data + '/secret')",
    "write a log of the system in its own folder": 'refuse_unless(os.listdir("/var/log")); write("/var/log/fanfold-was-here")',
    # ------------------------------------------------------------------------------- /proc and /sys
    "change the kernel": 'rewrite("/proc/sys/kernel/core_pattern")',
    "set the processor's memory": 'open("/proc/mtrr", "r+b")',
    "press the magic key": 'open("/proc/sysrq-trigger", "w")',
    "read our environment": 'refuse_unless(b"CANARY" in read(f"/proc/{engine}/environ"))',
    "read our files": 'read(f"/proc/{engine}/root" + secret)',
    "see our handles": 'refuse_unless(os.listdir(f"/proc/{engine}/fd") and os.readlink(f"/proc/{engine}/exe"))',
    "write our memory": 'open(f"/proc/{engine}/mem", "r+b"); os.kill(engine, 0)',
    "read through the first process": 'read("/proc/1/root" + secret)',
    "leave the cgroup": """
for line in open("/proc/self/cgroup"):
    for top in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        if os.path.exists(top + "/cgroup.procs"):
            write(top + "/cgroup.procs", str(os.getpid()))
            raise SystemExit
refuse_unless(False)
""",
    "write to /sys": 'rewrite("/sys/kernel/mm/ksm/run")',
    # -------------------------------------------------------------------------------- processes
    "signal us": 'os.kill(engine, signal.SIGUSR1); refuse_unless(os.path.exists(f"/proc/{engine}/root") and own_pid_namespace is False)',
    "signal us by a handle": "signal.pidfd_send_signal(os.pidfd_open(engine), signal.SIGUSR1); refuse_unless(own_pid_namespace is False)",
    "trace us": "checked(libc.ptrace(16, engine, 0, 0)); refuse_unless(own_pid_namespace is False)",
    "take a handle of ours": "call(438, os.pidfd_open(engine), 0, 0)",
    "limit us": "resource.prlimit(engine, resource.RLIMIT_NOFILE, (3, 3)); refuse_unless(own_pid_namespace is False)",
    "slow us down": "os.setpriority(os.PRIO_PROCESS, engine, 19); refuse_unless(own_pid_namespace is False)",
    "use our shared memory": """
identity = libc.shmget(key, 0, 0)
checked(identity)
libc.shmat.restype = ctypes.c_void_p
refuse_unless(ctypes.string_at(libc.shmat(identity, None, 0), 6) == b"CANARY")
""",
    "fork without end": """
children = []
try:
    while len(children) < 2_000:  # others of this user may be counted too, and end meanwhile
        pid = os.fork()
        if pid == 0:
            time.sleep(30); os._exit(0)
        children.append(pid)
finally:
    for pid in children:
        os.kill(pid, 9)
    for pid in children:
        os.waitpid(pid, 0)
""",
    # ------------------------------------------------------------------------------- the network
    "connect to the host": 'socket.create_connection(("127.0.0.1", port), 2)',
    "send to the host": """
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.sendto(b"out", ("127.0.0.1", udp))
sender.settimeout(1)
refuse_unless(sender.recv(10) == b"heard")
""",
    "look a name up": 'socket.getaddrinfo("example.com", 80)',
    "connect to an abstract socket": 'socket.socket(socket.AF_UNIX).connect("\\0" + abstract)',
    "connect to a socket in a folder": "socket.socket(socket.AF_UNIX).connect(path_socket)",
    "reach the hypervisor": "socket.socket(40, socket.SOCK_STREAM)",
    "open a raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)",
    "use the kernel's ciphers": "socket.socket(38, socket.SOCK_SEQPACKET)",
    # ------------------------------------------------------------------------------ system calls
    "mount": 'checked(libc.mount(b"none", b".", b"tmpfs", 0, None))',
    "unmount": "checked(libc.umount2(project.encode(), 2))",
    "make a user namespace": "checked(libc.unshare(0x10000000))",
    "make a mount namespace": "checked(libc.unshare(0x00020000))",
    "make a namespace with clone3": "call(435, (ctypes.c_uint64 * 11)(0x10000000), ctypes.c_size_t(88))",
    "join a namespace": 'checked(libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))',
    "change the root": 'os.chroot(".")',
    "open by handle": "checked(libc.open_by_handle_at(0, (ctypes.c_char * 128)(), 0))",
    "load a program into the kernel": "call(321, 0, (ctypes.c_char * 120)(), ctypes.c_long(120))",
    "watch the processor": "call(298, (ctypes.c_char * 120)(), 0, -1, -1, ctypes.c_long(0))",
    "use the kernel's keys": 'call(248, b"user", b"x", b"y", ctypes.c_long(1), ctypes.c_long(-3))',
    "load a module": 'call(175, b"", ctypes.c_long(0), b"")',
    "use io_uring": "call(425, ctypes.c_long(4), (ctypes.c_char * 120)())",
    "handle page faults": "call(323, ctypes.c_long(1))",
    "switch rebooting": "checked(libc.reboot(0))",
    "rename the machine": "socket.sethostname(socket.gethostname())",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "read the kernel's log": "checked(libc.klogctl(3, (ctypes.c_char * 100)(), 100))",
    "keep capabilities": 'refuse_unless("CapEff:\\t0000000000000000" not in open("/proc/self/status").read())',
    "gain privileges": 'refuse_unless("NoNewPrivs:\\t1" not in open("/proc/self/status").read())',
    # ---------------------------------------------------------------------------------- resources
    "raise a limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (100_000, 100_000))",
    "open files without end": "files = [open(os.devnull) for _ in range(5_000)]",
    "write a file without end": """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("large", "wb") as file:
    file.seek(64 * 1024 * 1024)
    file.write(b"x" * 4096)
""",
    "take memory without end": "hoard = bytearray(2 * 1024**3)",
    "fill the temporary folder": """
with open(os.environ["TMPDIR"] + "/fill", "wb") as file:
    for _ in range(48):
        file.write(bytes(1024 * 1024))
    file.flush()
""",
    # -------------------------------------------------------------------------------- environment
    "find a secret in the environment": 'refuse_unless("CANARY" in repr(dict(os.environ)))',
    "find a secret in /proc": 'refuse_unless(b"CANARY" in read("/proc/self/environ") + read(f"/proc/{os.getppid()}/environ"))',
    "be preloaded": 'refuse_unless("LD_PRELOAD" in os.environ or "PYTHONPATH" in os.environ)',
}

NOT_UNDER_LANDLOCK = {
    "see our handles": "processes outside are seen",
    "fill the temporary folder": "temporary files are limited one by one",
}

READ_ONLY = {
    "write": 'write("a.txt")',
    "append": 'open("a.txt", "a").write("x")',
    "create": 'write("new.txt")',
    "delete": 'os.unlink("a.txt")',
    "rename": 'os.rename("a.txt", "b.txt")',
    "truncate": 'os.truncate("a.txt", 0)',
    "change the mode": 'os.chmod("a.txt", 0o777)',
    "make a folder": 'os.mkdir("d")',
    "make a link": 'os.symlink("a.txt", "l")',
    "make a hard link": 'os.link("a.txt", "l")',
    "make a pipe": 'os.mkfifo("p")',
    "write through /proc": 'write("/proc/self/cwd/a.txt")',
    "write through a handle": 'os.write(os.open("a.txt", os.O_RDWR), b"x")',
    "map it for writing": 'import mmap; mmap.mmap(os.open("a.txt", os.O_RDWR), 1)[0] = 1',
}
