"""The first lines that run inside the sandbox; passed to the interpreter as text, never imported.

As the first process it hands the workspace's directory out, waits for "g", forks, and says how the child ended; all
that is left dies with it. The child becomes the slot's own user, lowers its limits and runs the agent's program as
`__main__`. Each import here costs every execution its time.
"""

import _sitebuiltins
import _socket
import builtins
import errno
import os
import resource
import sys

PROGRAM, WORKSPACE = "/action.py", "/workspace"
MIB = 1 << 20


def become(uid: int) -> None:
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


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


def shake_hands(control: _socket.socket) -> None:
    directory = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, directory.to_bytes(4, sys.byteorder))
    control.sendmsg([b"r"], [rights])
    os.close(directory)
    if control.recv(1) != b"g":
        os._exit(1)


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
    sys.path += ["/opt/site-packages", WORKSPACE]
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    # By line: what a program printed before it was killed must not be lost in a buffer.
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with open(PROGRAM, "rb") as file:  # noqa: PTH123 (pathlib costs milliseconds)
            source = file.read()
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 (what an interpreter does at the top)
        if os.getpid() == me:
            os.write(word, cause(error))
        frames = error.__traceback__
        error.__traceback__ = frames.tb_next if frames else None  # without this file's own frame
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def watch(control: _socket.socket, child: int, word: int) -> None:
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
    control.send(ended + why)
    os._exit(0)


def main() -> None:
    fd, uid, cpu_s, memory_mb, disk_mb, processes = map(int, sys.argv[1:])
    os.set_inheritable(fd, False)
    control = _socket.socket(fileno=fd)
    shake_hands(control)
    word, word_inside = os.pipe()
    child = os.fork()
    if child:
        os.close(word_inside)
        watch(control, child, word)
    control.close()
    os.close(word)
    become(uid)
    limit(cpu_s, memory_mb, disk_mb, processes)
    run(word_inside)


main()
