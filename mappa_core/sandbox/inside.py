"""What runs inside a sandbox; passed to the interpreter as text, never imported.

The first process imports what programs will want, and for each execution has a child that waits in a process namespace
of its own. The child is the first process of that namespace. Told of a program, it takes mounts, network and IPC of its
own, hands the workspace's directory out, waits for "g", forks, and says how the program ended; all that is left dies
with it. The program becomes the slot's own user, lowers its limits, takes the filter of system calls and runs as
`__main__`.

The first process hears nothing of any program, so that each starts from the same memory: the tenth as the first.
"""

import _sitebuiltins
import _socket
import _thread
import atexit
import builtins
import ctypes
import errno
import fcntl
import gc
import importlib
import os
import random
import resource
import sys

PROGRAM, WORKSPACE, TMP = "/action.py", "/workspace", "/tmp"  # noqa: S108 (the sandbox's own)
MIB = 1 << 20
WARM_UP, SMALL_IDS = 4, 300
"""Rounds of the first process before it is ready, and process ids that it leaves out: Python keeps ints up to 256."""
GONE = 99
"""Exit code of a child whose host closed the connection: the sandbox ends."""
NEW_NS, NEW_IPC, NEW_PID, NEW_NET = 0x00020000, 0x08000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
NO_NEW_PRIVS, SECCOMP, FILTER, AMBIENT, CLEAR_ALL = 38, 22, 2, 47, 4
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source: bytes, target: str, kind: bytes, flags: int, options: str = "") -> None:
    checked(libc.mount(source, target.encode(), kind, ctypes.c_ulong(flags), options.encode()))


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def raise_loopback() -> None:
    """A network of its own has one interface, which is down."""
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = bytearray(b"lo".ljust(40, b"\0"))
    fcntl.ioctl(any_socket.fileno(), GET_FLAGS, request)
    request[16] |= UP
    fcntl.ioctl(any_socket.fileno(), SET_FLAGS, request)
    any_socket.close()


def separate(disk_mb: int, program: int) -> None:
    """Mounts, network and IPC of this execution alone, with the program at its place."""
    checked(libc.unshare(NEW_NS | NEW_IPC | NEW_NET))
    mount(b"none", "/", b"", REC | PRIVATE)
    mount(b"tmpfs", TMP, b"tmpfs", NOSUID | NODEV, f"mode=1777,size={disk_mb * MIB}")
    mount(b"tmpfs", WORKSPACE, b"tmpfs", NOSUID | NODEV, f"mode=0777,size={disk_mb * MIB}")
    mount(b"proc", "/proc", b"proc", NOSUID | NODEV | NOEXEC | RDONLY)
    source = os.open(TMP + "/action", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    os.sendfile(source, program, 0, os.fstat(program).st_size)
    os.close(source)
    mount(b"/tmp/action", PROGRAM, b"", BIND)
    mount(b"none", PROGRAM, b"", BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    os.unlink(TMP + "/action")  # noqa: PTH108
    raise_loopback()
    os.chdir(WORKSPACE)


def become(uid: int) -> None:
    """The slot's own user; without one, the caller's without capabilities."""
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        return
    checked(libc.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()))


def limit(cpu_s: int, memory_mb: int, disk_mb: int, processes: int) -> None:
    # The soft limit's SIGXCPU names the cause; the hard limit's SIGKILL is for programs that ignore it.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    # Data just below the cgroup's limit, so that a program sees MemoryError before it is killed; the address space has
    # room for mapped libraries on top (256 MiB: scipy maps 190), and bounds what is not private data.
    for name, size in (
        (resource.RLIMIT_DATA, (memory_mb - 16) * MIB),
        (resource.RLIMIT_AS, (memory_mb + 256) * MIB),
        (resource.RLIMIT_FSIZE, disk_mb * MIB),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (size, size))


def confine(filter_: Filter) -> None:
    checked(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    checked(libc.prctl(SECCOMP, FILTER, ctypes.byref(filter_), 0, 0))


def cause(error: BaseException) -> bytes:
    if isinstance(error, MemoryError):
        return b"memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return b"disk"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return b"processes"
    return b""


def run(word: int) -> None:
    me = os.getpid()
    module = type(sys)("__main__")
    module.__dict__.update(__file__=PROGRAM, __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.argv = [PROGRAM]
    # Last, so that a file left in the workspace can't stand in for the standard library.
    sys.path += [WORKSPACE]
    # What was drawn once, when the sandbox started, must not be the same for all programs.
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    try:
        with open(PROGRAM, "rb") as file:  # noqa: PTH123 (pathlib costs milliseconds)
            source = file.read()
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        code: object = None
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 (what an interpreter does at the top)
        if os.getpid() == me:
            os.write(word, cause(error))
        frames = error.__traceback__
        error.__traceback__ = frames.tb_next if frames else None  # without this file's own frame
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    end(module.__dict__, code)


def end(names: dict, code: object) -> None:
    """Ends as an interpreter does: threads, exit functions, the program's objects, buffers.

    Nothing else is taken apart, which would touch, and so copy, all memory that is shared with the sandbox.
    """
    try:
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # noqa: SLF001 (what the interpreter calls)
        atexit._run_exitfuncs()  # noqa: SLF001
        names.clear()
        gc.collect()
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:  # noqa: BLE001 (a program's own streams and hooks may raise anything)
        code = 120
    os._exit(int(code or 0) & 0xFF)


def watch(session: _socket.socket, child: int, word: int) -> None:
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == child:
            break
    os.set_blocking(word, False)
    try:
        why = os.read(word, 16)
    except BlockingIOError:
        why = b""
    ended = b"%d %d " % (os.waitstatus_to_exitcode(status), 1000 * (usage.ru_utime + usage.ru_stime))
    session.send(ended + why)
    os._exit(0)


def serve(control: _socket.socket, uid: int, filter_: Filter) -> None:
    """Is the first process of an execution's namespace, and does not return."""
    data, ancillary, _, _ = control.recvmsg(256, _socket.CMSG_SPACE(16), _socket.MSG_CMSG_CLOEXEC)
    if not data:
        os._exit(GONE)
    control.close()
    handles = ancillary[0][2]
    fd, out, err, program = (int.from_bytes(handles[i : i + 4], sys.byteorder) for i in range(0, 16, 4))
    session = _socket.socket(fileno=fd)
    cpu_s, memory_mb, disk_mb, processes = map(int, data.split())
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        separate(disk_mb, program)
    except OSError as error:
        session.send(b"e" + str(error).encode())
        os._exit(1)
    for handle in (out, err, program):
        os.close(handle)
    own = [os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY), os.pidfd_open(1)]
    rights = b"".join(handle.to_bytes(4, sys.byteorder) for handle in own)
    session.sendmsg([b"r"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    for handle in own:
        os.close(handle)
    if session.recv(1) != b"g":
        os._exit(1)
    word, word_inside = os.pipe()
    # Where memory runs out the program goes, not what watches it.
    os.write(score, b"1000")
    child = os.fork()
    if child:
        os.write(score, b"0")
        os.close(word_inside)
        watch(session, child, word)
    for handle in (session.detach(), word, score):
        os.close(handle)
    become(uid)
    limit(cpu_s, memory_mb, disk_mb, processes)
    confine(filter_)
    run(word_inside)


def skip_small_ids() -> None:
    """Takes the process ids whose ints cost no memory, so that what holds a later one does not look different."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    for _ in range(SMALL_IDS):
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(done.release, ())
        done.acquire()
    os._exit(0)


def main() -> None:
    fd, filter_fd, uid = map(int, sys.argv[1:4])
    with open(filter_fd, "rb") as file:  # noqa: PTH123
        lines = file.read()
    filter_ = Filter(len(lines) // 8, lines)
    os.set_inheritable(fd, False)
    control = _socket.socket(fileno=fd)
    sys.path.append("/opt/site-packages")
    for name in sys.argv[4:]:
        importlib.import_module(name)
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    # By line: what a program printed before it was killed must not be lost in a buffer.
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    home = os.open("/proc/self/ns/pid", os.O_RDONLY)
    skip_small_ids()
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    # The first rounds leave memory as it then stays: programs see none of them.
    idle = [True] * WARM_UP
    while True:
        checked(libc.unshare(NEW_PID))
        child = os.fork()
        if not child:
            if idle:
                os._exit(0)
            os.close(home)
            serve(control, uid, filter_)
        checked(libc.setns(home, NEW_PID))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == GONE:
            return
        if idle:
            idle.pop()


main()
