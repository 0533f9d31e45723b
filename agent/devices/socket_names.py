"""Finds the users that have taken names in the kernel's abstract socket namespace, where any user can take any name.

The kernel is asked by netlink. Connecting would not do: the holder of a name need not listen, and could keep a
connection waiting.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY."""
_REQUEST_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_DONE, _ERROR = 3, 2  # NLMSG_DONE, NLMSG_ERROR
_SHOW: Final = 0x01 | 0x40
"""UDIAG_SHOW_NAME, UDIAG_SHOW_UID of linux/unix_diag.h; the second since Linux 5.3."""
_NAME, _UID = 0, 7  # UNIX_DIAG_NAME, UNIX_DIAG_UID
_INODE_AT: Final = 20
"""Where udiag_ino is: nlmsghdr, and four bytes of unix_diag_msg, come before it."""
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_ASK: Final = struct.Struct("=BBHIIIII")
"""unix_diag_req: family, protocol, padding, states, inode, what to show, two words of a cookie."""
_ATTRIBUTES_AT: Final = 32
"""The attributes follow nlmsghdr and unix_diag_msg."""
_WAIT_S: Final = 2.0
_OVERFLOW_UID: Final = 65534
"""The user id that a user namespace shows for users that it does not have."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The socket that has a name."""

    uid: int
    inode: int


def holders(name: bytes) -> dict[bytes, Holder]:
    """Return `name` and all names of the form `name`/suffix that are taken, with their holders.

    Raises OSError if the kernel does not tell, or not within _WAIT_S.
    """
    ask = _ASK.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0, 0)
    found: dict[bytes, Holder] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.send(_HEADER.pack(_HEADER.size + _ASK.size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        while True:
            data, at = kernel.recv(1 << 16), 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR or length < _HEADER.size:
                    raise OSError("the kernel does not tell which users have socket names")
                attributes = _attributes(data[at + _ATTRIBUTES_AT : at + length])
                held = attributes.get(_NAME, b"")
                if (held == name or held.startswith(name + b"/")) and _UID in attributes:
                    (inode,) = struct.unpack_from("=I", data, at + _INODE_AT)
                    found[held] = Holder(int.from_bytes(attributes[_UID], "little"), inode)
                at += length + -length % 4  # messages and attributes are padded to four bytes


def _attributes(data: bytes) -> dict[int, bytes]:
    """Return the netlink attributes in `data` by their kind."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind] = data[at + 4 : at + length]
        at += max(4, length + -length % 4)  # at least a header: a length of 0 would not end
    return found


def is_strangers(uid: int) -> bool:
    """Tell whether the user is neither root nor our own. A user that this namespace cannot name is no stranger."""
    return uid not in (0, os.getuid()) and not (uid == _OVERFLOW_UID and not _knows_all_users())


def _knows_all_users() -> bool:
    """Tell whether this user namespace has all user ids, as the host's has."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[-1] == str(2**32 - 1)
