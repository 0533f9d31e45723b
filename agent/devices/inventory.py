"""Lists the devices of the node and looks at them regularly. `health.py` and `unmanaged.py` judge what is found.

NVML can hang on a sick device. So each GPU has a daemon thread of its own, which looks at it (or at its MIG instances)
and hands the result to a callback. A thread that hangs delays no look at another device, and nothing waits for it;
`monitor.py` notices that its looks are missing.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.agent.devices import bus, nvml
from sharepod.agent.devices.device import NOT_LISTED, STANDS_IN, DeviceLook, Unlisted
from sharepod.agent.devices.session import Session
from sharepod.agent.errors import AgentUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sharepod.agent.devices.device import DeviceInfo, DeviceProcess
    from sharepod.agent.devices.session import Broken
    from sharepod.agent.shares.share import DeviceUuid

    Deliver = Callable[[tuple[DeviceLook, ...]], None]
    Claim = Callable[[DeviceInfo], None]

log = logging.getLogger("sharepod.agent")

Answer = TypeVar("Answer")

LOOK_INTERVAL_S: Final = 2.4
"""A process without a share is reported at the second look that sees it, so within 5 s."""
LIST_TIMEOUT_S: Final = 5.0
"""The agent's start waits this long for a device to describe itself."""
OPEN_TIMEOUT_S: Final = 60.0
"""It waits this long for NVML to be opened: without the persistence daemon that initialises the GPUs, one by one."""


def _open(simulate: str) -> tuple[Session, str, int] | AgentUnavailable:
    """Open NVML; return its session, the driver's version and the number of GPUs (at least 1), or why there are none.

    The error is returned, not raised: `_answers` has it from another thread. After an error NVML is closed.
    """
    try:
        session = Session(simulate)
    except AgentUnavailable as error:
        return error
    try:
        found = session, nvml.driver_version(), nvml.gpu_count()
    except nvml.Failure as error:
        nvml.close_nvml()
        return AgentUnavailable(f"NVML cannot list the devices: {error}: check `nvidia-smi`")
    if found[2]:
        return found
    nvml.close_nvml()
    return AgentUnavailable("no GPU on this machine: NVML lists none: use --simulate 1xH200")


def _answers(asks: Sequence[Callable[[], Answer]], timeout_s: float = LIST_TIMEOUT_S) -> list[Answer | str]:
    """Call all `asks` at once, each on a thread of its own. Return each answer, or a text that says why there is none.

    A thread that has not come back after `timeout_s` is left alone: NVML may hang. The calls raise only nvml.Failure.
    """
    answers: list[Answer | str] = [f"NVML has not answered for {timeout_s:g} s"] * len(asks)

    def ask(place: int) -> None:
        """Put the answer, or what an error of NVML means, into its place."""
        try:
            answers[place] = asks[place]()
        except nvml.Failure as error:
            answers[place] = nvml.fault_of(error)

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(asks))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(answers)


class _Board(threading.Thread):
    """A thread that looks at a GPU, or its instances, every LOOK_INTERVAL_S and at every Xid."""

    def __init__(self, handles: Sequence[nvml.Handle], generation: int, watch: _Watch) -> None:
        """Take the GPU's handles, which are valid in one generation of the session."""
        super().__init__(name="nvml", daemon=True)
        self._handles = tuple(handles)
        self._generation = generation
        self._watch = watch
        self._events = nvml.XidEvents(self._handles[0].gpu)
        self._known: dict[DeviceUuid, dict[int, DeviceProcess]] = {}

    def run(self) -> None:
        """Look, deliver, and wait for an Xid event or LOOK_INTERVAL_S; again and again until the agent closes."""
        xids: tuple[int, ...] = ()
        while not self._watch.stopping.is_set():
            with self._watch.session.use() as generation:
                looks = self._look(generation, xids)
                self._watch.deliver(looks)
                xids = self._events.wait(LOOK_INTERVAL_S, self._watch.stopping)
            self._watch.report(looks)

    def _look(self, generation: int, xids: tuple[int, ...]) -> tuple[DeviceLook, ...]:
        """Look at all devices of the thread. If NVML has been opened anew, their handles are first found again.

        `xids`: the events since the last look.
        """
        if generation != self._generation:
            try:
                self._handles = tuple(self._watch.find_again(item.info) for item in self._handles)
            except nvml.Failure as error:
                return tuple(_not_found(item.info.uuid, error) for item in self._handles)
            self._events = nvml.XidEvents(self._handles[0].gpu)
            self._generation = generation
        self._events.subscribe()
        return tuple(self._look_at(item, xids) for item in self._handles)

    def _look_at(self, item: nvml.Handle, xids: tuple[int, ...]) -> DeviceLook:
        """Look at one device, and remember its processes, so that the next look reads only new ones."""
        look = nvml.look_at(item, xids, self._known.get(item.info.uuid, {}))
        self._known[item.info.uuid] = {process.pid: process for process in look.processes}
        return look


class _Search(threading.Thread):
    """A thread that asks for a device that NVML does not list; once it is there, the thread looks at it."""

    def __init__(self, name: DeviceUuid, place: int | None, watch: _Watch) -> None:
        """Search for the device with this UUID. If it could not tell its UUID, search at `place` of NVML's list."""
        super().__init__(name="nvml", daemon=True)
        self._name = name
        self._place = place
        self._watch = watch

    def run(self) -> None:
        """Ask every LOOK_INTERVAL_S until the device is there; from then on look at it as a `_Board` does."""
        while not self._watch.stopping.is_set():
            with self._watch.session.use() as generation:
                try:
                    handles = self._find()
                    look = DeviceLook(self._name, error=NOT_LISTED, gone=True)
                except nvml.Failure as error:
                    handles, look = (), _not_found(self._name, error)
            if handles and not (look := self._claim(handles)).error:
                self._watch.session.forget(self._name)
                self._watch.deliver((look,))
                _Board(handles, generation, self._watch).run()
                return
            self._watch.deliver((look,))
            self._watch.report((look,))
            self._watch.stopping.wait(LOOK_INTERVAL_S)

    def _find(self) -> tuple[nvml.Handle, ...]:
        """Return the device, or the devices at its place; nothing if another GPU is there, or one cannot tell yet.

        Raises nvml.Failure.
        """
        if self._place is None:
            return (nvml.find(self._name, simulated=self._watch.simulated),)
        answers = nvml.list_gpu(self._place, simulated=self._watch.simulated)
        handles = tuple(one for one in answers if isinstance(one, nvml.Handle))
        if len(handles) < len(answers):  # an instance cannot be described yet
            return ()
        address = self._name.removeprefix(STANDS_IN)
        is_other = any(one.info.address not in ("", address) for one in handles) and ":" in address
        return () if is_other or any(one.info.uuid in self._watch.listed for one in handles) else handles

    def _claim(self, handles: Sequence[nvml.Handle]) -> DeviceLook:
        """Claim the devices. Return the look that says that they are found, or that another agent has one of them."""
        infos = tuple(one.info for one in handles)
        if self._place is None:
            return DeviceLook(self._name, found=infos)  # claimed by its UUID when the agent started
        try:
            for info in infos:
                self._watch.claim(info)
        except AgentUnavailable as error:
            return DeviceLook(self._name, error=str(error))
        self._watch.listed.update(info.uuid for info in infos)
        return DeviceLook(self._name, found=infos)


def _not_found(uuid: DeviceUuid, error: Exception) -> DeviceLook:
    """Return the look at a device that NVML could not find."""
    return DeviceLook(uuid, error=nvml.fault_of(error), gone=nvml.is_gone(error))


@dataclass(frozen=True, slots=True)
class _Watch:
    """What all looking threads share."""

    session: Session
    simulated: bool
    deliver: Deliver
    broken: Broken
    """Called with the reason when NVML has failed and cannot be opened again."""
    stopping: threading.Event
    claim: Claim
    """Claims a device for this agent. Raises AgentUnavailable if another agent has it."""
    listed: set[DeviceUuid]
    """The devices that have a thread which looks at them."""

    def find_again(self, info: DeviceInfo) -> nvml.Handle:
        """Return a new handle of a known device, with the facts that are known of it. Raises nvml.Failure."""
        return replace(nvml.find(info.uuid, simulated=self.simulated), info=info)

    def report(self, looks: Sequence[DeviceLook]) -> None:
        """Tell the session whether a look at a GPU, or at all of its instances, failed.

        Log it if the session then opens NVML anew; call `broken` if NVML does not work after that. Called outside
        `Session.use`.
        """
        cause = self.session.looked(looks[0].uuid, failed=all(look.error for look in looks))
        if cause:
            log.error("NVML does not come back", extra={"cause": cause})
            self.broken(cause)
        elif cause is not None:
            log.warning("NVML opened anew", extra={"reason": looks[0].error})


class Inventory:
    """NVML, from construction to `close`. `devices` never changes: a device that fails stays and becomes unhealthy."""

    def __init__(self, simulate: str = "") -> None:
        """Open NVML and list the devices; `simulate` names simulated ones.

        Raises AgentUnavailable when there is no driver or no device, or when the driver does not answer.
        """
        [opened] = _answers([functools.partial(_open, simulate)], OPEN_TIMEOUT_S)
        if isinstance(opened, str):
            raise AgentUnavailable(f"{opened}: look at dmesg, and at whether `nvidia-smi` answers")
        if isinstance(opened, AgentUnavailable):
            raise opened
        self._session, self.driver_version, count = opened
        self._simulated = bool(simulate)
        self._stopping = threading.Event()
        self._is_looking = False
        self.unlisted: list[Unlisted] = []
        """The devices that could not be described."""
        self._boards = self._list(count)

    @property
    def session(self) -> Session:
        """The NVML session: it is closed while an operator has a device."""
        return self._session

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices that were listed. A GPU in MIG mode is replaced by its instances."""
        return tuple(item.info for board in self._boards for item in board)

    def _list(self, count: int) -> list[tuple[nvml.Handle, ...]]:
        """Return the devices of `count` GPUs, a tuple for each GPU. Those that cannot be described go into `unlisted`.

        They get indices in NVML's order like the others: so a device that does not answer moves no other's index.
        """
        asks = [functools.partial(nvml.list_gpu, place, simulated=self._simulated) for place in range(count)]
        addresses = () if self._simulated else bus.driven()
        boards: list[tuple[nvml.Handle, ...]] = []
        index = 0
        for place, answer in enumerate(_answers(asks)):
            board: list[nvml.Handle] = []
            if isinstance(answer, str):
                # NVML's order is that of the addresses, if none of the driver's devices is hidden from this process.
                answer = (Unlisted(place, -1, answer, address=addresses[place] if len(addresses) == count else ""),)
            for one in answer:
                if isinstance(one, Unlisted):
                    self.unlisted.append(replace(one, index=index))
                else:
                    board.append(replace(one, info=replace(one.info, index=index)))
                index += 1
            boards.append(tuple(board))
        [with_peers] = _answers([functools.partial(nvml.with_peers, [one for board in boards for one in board])])
        if isinstance(with_peers, str):  # the NVLink peers are not known
            return boards
        known = {one.info.uuid: one for one in with_peers}
        return [tuple(known[one.info.uuid] for one in board) for board in boards]

    def start(self, deliver: Deliver, broken: Broken, missing: Mapping[DeviceUuid, int | None], claim: Claim) -> None:
        """Begin to look at all devices, and to search for the `missing` ones.

        `missing`: by UUID or by a name that stands for it; then the number is the GPU's place in NVML's list.
        The callbacks run on the looking threads: `deliver` gets what was found, `broken` why NVML has failed. `claim`
        claims a device for this agent when its UUID becomes known; it raises AgentUnavailable if another agent has it.
        """
        self._is_looking = True
        listed = {info.uuid for info in self.devices}
        watch = _Watch(self._session, self._simulated, deliver, broken, self._stopping, claim, listed)
        boards = [_Board(handles, 0, watch) for handles in self._boards if handles]
        searches = [_Search(name, place, watch) for name, place in missing.items()]
        for thread in (*boards, *searches):
            thread.start()

    def close(self) -> None:
        """Stop looking.

        The looking threads are not waited for: inside NVML they may take seconds, or hang. While one is inside, NVML is
        not closed under it: it stays open until the process ends.
        """
        self._stopping.set()
        if not self._is_looking:
            nvml.close_nvml()
