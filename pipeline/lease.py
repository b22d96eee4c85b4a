"""One driver per output at a time: a lease that its holder renews, and that others may take once it is left alone.

`_manifest/lease.json` in the output names the holder and changes with every renewal. Clocks of different hosts are
never compared: who wants the lease watches the object, and one that has not changed for a whole lease time, on the
watcher's own clock, is nobody's any more. The lease saves work and keeps people from surprises. That no row is lost or
doubled does not hang on it: see `pipeline.commit`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.holder import Holder
from pipeline.manifest import OutputFolder
from pipeline.storage import StorageError
from pipeline.versioned import Version, read_version, swap

LEASE = "_manifest/lease.json"
#: Renewals that a watcher sees before it believes that the holder lives: one may have been under way when it died.
_ALIVE = 2
#: Tries of one renewal whose object others change meanwhile, and seconds that a release waits for one under way.
_TRIES, _RELEASE_SECONDS = 5, 2.0

log = logging.getLogger(__name__)


def _now() -> float:
    """Seconds that go on while the machine is suspended, which those of `time.monotonic` do not on Linux."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Pace:
    """seconds: without a renewal until the lease is anybody's. renew: seconds from one renewal to the next. poll:
    seconds between two looks at a lease that somebody else holds."""

    seconds: float = 30.0
    renew: float = 10.0
    poll: float = 1.0


#: The same for all drivers of an output, hence no setting. Tests have less time.
PACE = Pace()


class LeaseError(RuntimeError):
    """Somebody else writes the output; the same command may succeed later. The message names output and holder."""


class OutputHeldError(LeaseError):
    """The holder still renews its lease."""


class LeaseLostError(LeaseError):
    """This driver was silent for longer than a lease lasts, and another one took over."""


class Lease:
    """Held by this process. waited: somebody else had it before, so that the output may have changed meanwhile."""

    def __init__(self, output: OutputFolder, pace: Pace) -> None:
        self.waited = False
        self._storage, self._uri, self._output = output.storage, output.path(LEASE), output.uri
        self._pace, self._me = pace, Holder.here()
        self._renewals = 0
        self._tried = self._renewed = 0.0  # `_now` of the last try, and of the last one that succeeded
        self._lost = ""  # why, where it is known
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renewing, name="lease", daemon=True)

    def take(self, tell: Callable[[str], None]) -> None:
        """Returns once this process holds the lease and renews it. tell: is told what is waited for.

        Raises `OutputHeldError` where the holder is seen to live, `StorageError`.
        """
        watch = _Watch()
        while not self._is_ours(watch, tell):
            time.sleep(self._pace.poll)
        self._renewed = self._tried
        self._thread.start()

    def check(self) -> None:
        """Raises `LeaseLostError` where it is known that another driver has taken over. Asks nobody."""
        if self._lost:
            raise LeaseLostError(
                f"{self._output}: {self._lost}: this one was suspended, or cut off from the store, for more than "
                f"{self._pace.seconds:g} s. What it committed stays"
            )

    def confirm(self) -> None:
        """Renews the lease now. Raises `LeaseLostError` where another driver has it, `StorageError` where the store
        cannot tell."""
        with self._lock:
            self.check()
            written = b""
            for _ in range(_TRIES):
                version = read_version(self._storage, self._uri)
                if version is None:  # removed by somebody's hand, or given back by one who had taken over
                    if _now() - self._renewed >= self._pace.seconds:
                        self._lost = "its lease is gone, and another driver may have taken over and ended"
                        self.check()
                    if self._storage.create(self._uri, self._next()):
                        self._renewed = self._tried
                        return
                    continue
                if version.data == written:  # the answer to the last try was lost
                    self._renewed = self._tried
                    return
                holder = Holder.from_json(version.data)
                if holder.run != self._me.run:
                    self._lost = f"another driver has taken over, {holder}"
                    self.check()
                written = self._next()
                if swap(self._storage, self._uri, written, version.tag):
                    self._renewed = self._tried
                    return
            raise StorageError(f"{self._uri}: cannot be renewed: it changed {_TRIES} times meanwhile")

    def release(self) -> None:
        """Gives the lease back where it is still ours. What fails here is left to expire."""
        self._end.set()
        if not self._lock.acquire(timeout=_RELEASE_SECONDS):
            return  # a renewal hangs in the store
        try:
            perhaps = self._renewals and not self._lost
            version = read_version(self._storage, self._uri) if perhaps else None
            if version is not None and Holder.from_json(version.data).run == self._me.run:
                self._storage.delete(self._uri)
        except StorageError:
            log.warning("the lease of %s could not be given back; it expires by itself", self._output, exc_info=True)
        finally:
            self._lock.release()

    def _is_ours(self, watch: _Watch, tell: Callable[[str], None]) -> bool:
        version = read_version(self._storage, self._uri)
        if version is None:
            return self._storage.create(self._uri, self._next())
        holder = Holder.from_json(version.data)
        if holder.run == self._me.run:  # the answer was lost
            return True
        self.waited = True
        begun = watch.look(version, holder)
        if watch.renewals >= _ALIVE:
            raise OutputHeldError(f"{self._output} is being written by {holder}. Wait until it ends, or stop it")
        gone = holder.is_gone()
        if gone or watch.silent_seconds >= self._pace.seconds:
            why = "has ended" if gone else f"did not renew its lease for {self._pace.seconds:g} s"
            tell(f"{holder} {why}: taking over")
            return swap(self._storage, self._uri, self._next(), version.tag)
        if begun:
            tell(f"the output is held by {holder}: waiting up to {self._pace.seconds:g} s for a sign of life")
        return False

    def _next(self) -> bytes:
        self._renewals += 1
        self._tried = _now()  # before the write: others count from when they see it, which is later
        return self._me.to_json(self._renewals)

    def _renewing(self) -> None:
        while not self._end.wait(self._pace.renew):
            try:
                self.confirm()
            except LeaseLostError:
                return
            except Exception:  # the next try may succeed, and `confirm` before the end has the last word
                log.warning("the lease of %s could not be renewed", self._output, exc_info=True)


class _Watch:
    """What a watcher has seen of somebody else's lease. renewals: of the present holder."""

    def __init__(self) -> None:
        self.renewals = 0
        self._holder, self._tag, self._since = "", "", 0.0

    def look(self, version: Version, holder: Holder) -> bool:
        """Takes in the object as it is now; whether it is the first look at this holder."""
        if version.tag == self._tag:
            return False
        begun = not self._tag or holder.run != self._holder
        self.renewals = 0 if begun else self.renewals + 1
        self._holder, self._tag, self._since = holder.run, version.tag, time.monotonic()
        return begun

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._since


@contextmanager
def held(output: OutputFolder, tell: Callable[[str], None]) -> Iterator[Lease]:
    """Holds the lease of `output` during the body, and gives it back afterwards, whatever happens. Raises what
    `Lease.take` does."""
    lease = Lease(output, PACE)
    try:
        lease.take(tell)
        yield lease
    finally:
        lease.release()
