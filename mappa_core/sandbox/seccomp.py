"""A seccomp filter as bytes: what the kernel is not asked from inside the sandbox.

Namespaces hide files, processes and the network; this closes what they leave open: new namespaces, tracing, kernel
keys, BPF, io_uring, and socket families that no network namespace holds (a virtual machine's vsock). x86-64 only.
"""

from __future__ import annotations

import errno
import struct

_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16
"""Offsets in struct seccomp_data."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000
_CLONE, _CLONE3, _SOCKET = 56, 435, 41
_CLONE_NEW = 0x7E020000
"""Every CLONE_NEW... flag that clone takes."""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6: bound to the (empty) network namespace."""
_REFUSED = (
    *(101, 310, 311, 312, 438, 440),  # ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise
    *(272, 308, 165, 166, 155, 161),  # unshare setns mount umount2 pivot_root chroot
    *(428, 429, 430, 431, 432, 433, 442),  # open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
    *(248, 249, 250),  # add_key request_key keyctl
    *(321, 298, 323, 425, 426, 427),  # bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    *(175, 313, 176, 246, 320, 169),  # init_module finit_module delete_module kexec_load kexec_file_load reboot
    *(167, 168, 163, 179, 443, 103),  # swapon swapoff acct quotactl quotactl_fd syslog
    *(303, 304, 300, 172, 173, 154),  # name_to_handle_at open_by_handle_at fanotify_init iopl ioperm modify_ldt
    *(164, 227, 159, 305, 170, 171),  # settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname
)


def program() -> bytes:
    """The filter, an array of struct sock_filter."""
    refuse = _op(_RETURN, _ERROR | errno.EPERM)
    lines = [
        _op(_LOAD, _ARCH),
        _op(_JUMP_EQ, _ARCH_X86_64, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        _op(_JUMP_GE, _X32_BIT, 0, 1),
        refuse,
    ]
    for number in _REFUSED:
        lines += [_op(_JUMP_EQ, number, 0, 1), refuse]
    # clone3's flags lie behind a pointer: "not implemented" makes the C library fall back to clone.
    lines += [_op(_JUMP_EQ, _CLONE3, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    lines += [_op(_JUMP_EQ, _CLONE, 0, 3), _op(_LOAD, _ARGUMENT_0), _op(_JUMP_ANY, _CLONE_NEW, 0, 1), refuse]
    lines += [_op(_LOAD, _NUMBER), _op(_JUMP_EQ, _SOCKET, 0, len(_FAMILIES) + 2), _op(_LOAD, _ARGUMENT_0)]
    lines += [_op(_JUMP_EQ, family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES)]
    lines += [_op(_RETURN, _ERROR | errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)]
    return b"".join(lines)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
