"""The devices of the node, and who looks at them. Nothing is decided here: `health.py` and `foreign.py` do.

NVML can hang on a sick device. So each GPU has a daemon thread of its own, which looks at it, or at the instances that
it is cut into, and hands the result to a callback. A hung thread holds up no look at another device, and nobody waits
for it; that its looks are missing is noticed in `devices.py`.
"""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from sharepod.agent import nvml
from sharepod.agent.device import DeviceLook
from sharepod.agent.errors import AgentUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sharepod.agent.device import DeviceInfo, DeviceProcess
    from sharepod.agent.share import DeviceUuid

    Deliver = Callable[[tuple[DeviceLook, ...]], None]

Answer = TypeVar("Answer")

LOOK_INTERVAL_S: Final = 2.4
"""A process without a share is told at the second look that sees it: within 5 s."""
LIST_TIMEOUT_S: Final = 5.0
"""A device that does not say by then what it is holds up the start of the agent no longer."""


def _answers(asks: Sequence[Callable[[], Answer]]) -> list[Answer | str]:
    """Ask all at once, each on a thread that nobody waits for beyond LIST_TIMEOUT_S. Return answers, or why not."""
    answers: list[Answer | str] = [f"NVML has not answered for {LIST_TIMEOUT_S:g} s"] * len(asks)

    def ask(place: int) -> None:
        try:
            answers[place] = asks[place]()
        except nvml.Failure as error:
            answers[place] = nvml.fault_of(error)

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(asks))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + LIST_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(answers)


class _Board(threading.Thread):
    """Looks at a GPU, or its instances, every LOOK_INTERVAL_S and at every Xid."""

    def __init__(self, handles: Sequence[nvml.Handle], deliver: Deliver, stopping: threading.Event) -> None:
        super().__init__(name="nvml", daemon=True)
        self._handles = tuple(handles)
        self._deliver = deliver
        self._stopping = stopping
        self._known: dict[DeviceUuid, dict[int, DeviceProcess]] = {}

    def run(self) -> None:
        events = nvml.XidEvents(self._handles[0].parent)
        xids: tuple[int, ...] = ()
        while not self._stopping.is_set():
            events.subscribe()
            self._deliver(tuple(self._look_at(item, xids) for item in self._handles))
            xids = events.wait(LOOK_INTERVAL_S, self._stopping)

    def _look_at(self, item: nvml.Handle, xids: tuple[int, ...]) -> DeviceLook:
        look = nvml.look_at(item, xids, self._known.get(item.info.uuid, {}))
        self._known[item.info.uuid] = {process.pid: process for process in look.processes}
        return look


class _Search(threading.Thread):
    """Asks for a device that NVML does not list until it is there, and looks at it from then on."""

    def __init__(self, uuid: DeviceUuid, deliver: Deliver, stopping: threading.Event, *, simulated: bool) -> None:
        super().__init__(name="nvml", daemon=True)
        self._uuid = uuid
        self._deliver = deliver
        self._stopping = stopping
        self._simulated = simulated

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                handle = nvml.find(self._uuid, simulated=self._simulated)
            except nvml.Failure as error:
                look = DeviceLook(self._uuid, error=nvml.fault_of(error), gone=nvml.is_gone(error))
                self._deliver((look,))
                self._stopping.wait(LOOK_INTERVAL_S)
                continue
            self._deliver((DeviceLook(self._uuid, info=handle.info),))
            _Board([handle], self._deliver, self._stopping).run()


class Inventory:
    """NVML, from construction to `close`. `devices` never changes: a device that fails stays and becomes unhealthy."""

    def __init__(self, simulate: str = "") -> None:
        """Open NVML and list the devices; `simulate` names simulated ones.

        Raises AgentUnavailable when there is no driver or no device.
        """
        nvml.open_nvml(simulate)
        self._simulated = bool(simulate)
        self._stopping = threading.Event()
        self._is_looking = False
        try:
            self.driver_version = nvml.driver_version()
            count = nvml.gpu_count()
        except nvml.Failure as error:
            nvml.close_nvml()
            raise AgentUnavailable(f"NVML cannot list the devices: {error}: check `nvidia-smi`") from None
        if not count:
            nvml.close_nvml()
            raise AgentUnavailable("no GPU on this machine: NVML lists none: use --simulate 1xH200")
        self.unlisted: dict[int, str] = {}
        """Why a GPU could not be listed, by its place in NVML's list."""
        self._boards = self._list(count)

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices that were listed, MIG instances in place of the GPUs that are cut into them."""
        return tuple(item.info for board in self._boards for item in board)

    def _list(self, count: int) -> list[tuple[nvml.Handle, ...]]:
        asks = [functools.partial(nvml.list_gpu, place, simulated=self._simulated) for place in range(count)]
        boards: list[tuple[nvml.Handle, ...]] = []
        index = 0
        for place, answer in enumerate(_answers(asks)):
            if isinstance(answer, str):
                self.unlisted[place] = answer
                index += 1  # kept free for it: the others are called what they were
                continue
            boards.append(tuple(replace(one, info=replace(one.info, index=index + n)) for n, one in enumerate(answer)))
            index += len(answer)
        [joined] = _answers([functools.partial(nvml.with_peers, [one for board in boards for one in board])])
        if isinstance(joined, str):  # what NVLink joins is not known
            return boards
        known = {one.info.uuid: one for one in joined}
        return [tuple(known[one.info.uuid] for one in board) for board in boards]

    def start(self, deliver: Deliver, missing: Iterable[DeviceUuid] = ()) -> None:
        """Look at all devices from now on, and for the `missing` ones; `deliver` is called on the looking threads."""
        self._is_looking = True
        boards = [_Board(handles, deliver, self._stopping) for handles in self._boards if handles]
        searches = [_Search(uuid, deliver, self._stopping, simulated=self._simulated) for uuid in missing]
        for thread in (*boards, *searches):
            thread.start()

    def close(self) -> None:
        """Stop looking.

        Nobody waits for the threads that look: inside NVML they may wait for seconds, or hang. Where there are some,
        NVML is not closed under them: the end of the process does that.
        """
        self._stopping.set()
        if not self._is_looking:
            nvml.close_nvml()
