"""Who writes an output: one driver process, told apart from all others, and whether it is provably gone."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

#: States of a process that runs no more, in /proc/PID/stat: killed and not waited for yet, or dead.
_ENDED = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class Holder:
    """One driver. run: a random name of this run, which decides who is who. since: wall time of its start, for people.

    place: which boot of which kernel, and which namespace, the process id counts in; empty where that is not known.
    born: when that process began, in the kernel's ticks, so that another one with its number is not taken for it.
    """

    run: str
    host: str = "an unknown host"
    pid: int = 0
    user: str = "somebody"
    since: str = ""
    place: str = ""
    born: str = ""

    @classmethod
    def here(cls) -> Holder:
        """This process, as the driver of a new run."""
        pid = os.getpid()
        return cls(
            run=secrets.token_hex(8),
            host=socket.gethostname(),
            pid=pid,
            user=_user(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            place=_place(),
            born=_stat(pid)[1],
        )

    @classmethod
    def from_json(cls, text: bytes) -> Holder:
        """What `to_json` wrote; an unknown holder where it is anything else."""
        try:
            facts = json.loads(text)
            kinds = {f.name: type(getattr(_UNKNOWN, f.name)) for f in fields(cls)}
            return cls(**{name: kind(facts[name]) for name, kind in kinds.items()})
        except (ValueError, KeyError, TypeError):
            return _UNKNOWN

    def to_json(self, renewal: int) -> bytes:
        """renewal: a number that makes this text unlike the one before."""
        return json.dumps(asdict(self) | {"renewal": renewal}, indent=2).encode()

    def is_gone(self) -> bool:
        """Whether that process is known to have ended: it ran on this very machine, and is not there any more.

        False for everything that cannot be proved from here: another host, another container, a process that is merely
        suspended.
        """
        if not self.place or self.place != _place():
            return False
        try:
            os.kill(self.pid, 0)  # sends nothing
        except ProcessLookupError:
            return True
        except OSError:  # there, and not ours
            pass
        state, born = _stat(self.pid)
        return state in _ENDED or (bool(born) and bool(self.born) and born != self.born)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}, run {self.run} since {self.since}"


_UNKNOWN = Holder(run="")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"user {os.getuid()}"


def _place() -> str:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc of another namespace
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time"))])
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """(state, time of its start) of a process; empty texts where /proc does not tell."""
    try:
        # The name of the program comes first, in brackets, and may hold anything.
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return facts[0], facts[19]
    except (OSError, IndexError):
        return "", ""
