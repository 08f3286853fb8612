"""A seccomp filter, as bubblewrap's --seccomp takes it: what a program needs no more than it needs the network.

Two kinds are refused (EPERM): doors into the kernel that other protections rest on, namespaces first, in which a program would
be root; and memory that no limit of `limits` counts: memfd_create, System V and POSIX queues and shared memory. The format is
classic BPF over `struct seccomp_data` (linux/seccomp.h, linux/filter.h); numbers are from the kernel's tables, asm/unistd_64.h
and asm-generic/unistd.h. Tried on x86_64.
"""

from __future__ import annotations

import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in seccomp_data

_CLONE3 = 435
_EVERYWHERE = (
    *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    *(428, 429, 430, 431, 432, 433, 442),  # open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr
    *(438, 447),  # pidfd_getfd, memfd_secret
)
_X86_64 = (
    41,  # socket
    *(29, 30, 64, 68, 240),  # shmget, shmat, semget, msgget, mq_open
    *(101, 310, 311),  # ptrace, process_vm_readv, process_vm_writev
    *(155, 161, 165, 166, 272, 308),  # pivot_root, chroot, mount, umount2, unshare, setns
    *(248, 249, 250),  # add_key, request_key, keyctl
    *(298, 303, 304, 319, 321, 323),  # perf_event_open, name_to_handle_at, open_by_handle_at, memfd_create, bpf, userfaultfd
)
_AARCH64 = (
    198,  # socket
    *(194, 196, 190, 186, 180),  # shmget, shmat, semget, msgget, mq_open
    *(117, 270, 271),  # ptrace, process_vm_readv, process_vm_writev
    *(41, 51, 40, 39, 97, 268),  # pivot_root, chroot, mount, umount2, unshare, setns
    *(217, 218, 219),  # add_key, request_key, keyctl
    *(241, 264, 265, 279, 280, 282),  # perf_event_open, name_to_handle_at, open_by_handle_at, memfd_create, bpf, userfaultfd
)
_MACHINES = {  # AUDIT_ARCH, the number of clone, what is refused, the first number of another table
    "x86_64": (0xC000003E, 56, _X86_64, 1 << 30),
    "aarch64": (0xC00000B7, 220, _AARCH64, None),
}


def program() -> bytes | None:
    """The filter for this machine; None where it is none of those whose numbers are known."""
    if platform.machine() not in _MACHINES:
        return None
    architecture, clone, refused, other_table = _MACHINES[platform.machine()]
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if other_table is not None:
        steps += _unless(_AT_LEAST, other_table, _EPERM)
    for number in (*refused, *_EVERYWHERE):
        steps += _unless(_EQUAL, number, _EPERM)
    # Its flags are behind a pointer, where no filter sees them; without it the C library takes clone.
    steps += _unless(_EQUAL, _CLONE3, _ENOSYS)
    steps += [(_EQUAL, 0, 3, clone), (_LOAD, 0, 0, _FIRST_ARGUMENT), *_unless(_ANY_BIT, _NAMESPACES, _EPERM)]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _unless(test: int, operand: int, error: int) -> list[tuple[int, int, int, int]]:
    """Refuse where the test holds for what is loaded."""
    return [(test, 0, 1, operand), (_RETURN, 0, 0, _ERROR | error)]
