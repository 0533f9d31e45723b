"""Test registration with kubelets that come and go, sockets that are removed, and plugins that follow each other."""

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_allocator import A, MemoryAllocator, plugin

from rig.cluster.kubelet import AdmissionFailed, FakeKubelet, StartFailed, leave_dead_socket
from rig.until import eventually
from sharepod.deviceplugin.core.unit import Units
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1 import registration as kubelet_module
from sharepod.deviceplugin.v1beta1.registration import Registration, State
from sharepod.deviceplugin.v1beta1.service import PluginService

Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return the log messages of the registration so far, in order."""
    caplog.set_level("INFO", "sharepod.deviceplugin.kubelet")
    return lambda: [record.message for record in caplog.records]


async def test_the_plugin_serves_before_it_registers_and_its_end_takes_its_units_and_its_socket_away(
    directory: Path, said: Said
) -> None:
    async with FakeKubelet(directory) as kubelet:
        async with plugin(kubelet.plugins) as (service, registration):
            endpoint = await kubelet.registered()  # kubelet connects to the plugin during Register
            (request,) = kubelet.registrations
            assert (request.version, request.endpoint) == ("v1beta1", "sharepod.io_gpu.sock")
            assert request.resource_name == "sharepod.io/gpu"
            assert request.options == endpoint.options
            assert request.options.pre_start_required
            assert request.options.get_preferred_allocation_available
            assert registration.path.stat().st_mode & 0o777 == 0o600, "whoever else can connect could allocate"
            await eventually(lambda: registration.state is State.REGISTERED)
            assert service.watchers == 1
            assert said() == ["registered with kubelet"]
        assert not registration.path.exists()
        await eventually(lambda: endpoint.stopped)
        assert endpoint.error == ""  # the plugin ended the stream in order
        assert (kubelet.capacity, kubelet.allocatable) == (100, 0)
        assert sorted(path.name for path in kubelet.plugins.iterdir()) == ["kubelet.sock"]


@pytest.mark.parametrize("was_killed", [False, True])
async def test_a_kubelet_that_is_away_is_waited_for_and_said_so_once(
    directory: Path, said: Said, was_killed: bool
) -> None:
    """Check a plugin that starts without kubelet; a killed kubelet leaves a socket that no process answers."""
    plugins = directory / "device-plugins"
    plugins.mkdir()
    if was_killed:
        leave_dead_socket(plugins / "kubelet.sock")
    async with plugin(plugins) as (_, registration):
        await eventually(said)
        await asyncio.sleep(3 * kubelet_module.POLL_S)
        assert said() == ["kubelet is away"]
        assert registration.state is State.WAITING
        async with FakeKubelet(directory) as kubelet:
            await kubelet.registered()
            await eventually(lambda: registration.state is State.REGISTERED)


async def test_after_a_restart_of_kubelet_the_plugin_is_back_and_containers_keep_what_they_were_given(
    directory: Path,
) -> None:
    allocator = MemoryAllocator()
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator):
        await kubelet.registered()
        running = await kubelet.admit("default", "running", {"main": 30})
        waiting = await kubelet.admit("default", "waiting", {"main": 30})
        given = (await kubelet.start(running, "main")).response
        for count in (2, 3):
            await kubelet.relaunch()
            assert not (kubelet.plugins / "sharepod.io_gpu.sock").exists()
            await kubelet.registered()
            assert len(kubelet.registrations) == count
        assert running.containers["main"].response == given
        started = await kubelet.restart(running, "main")
        assert (started.pre_started, started.starts) == (True, 2)
        await kubelet.start(waiting, "main")
        assert len(allocator.allocated) == 2
        with pytest.raises(AdmissionFailed, match="Requested: 50, Available: 40"):
            await kubelet.admit("default", "third", {"main": 50})


async def test_a_socket_that_is_removed_is_made_anew(directory: Path, said: Said) -> None:
    allocator = MemoryAllocator()
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins, allocator) as (service, registration):
        await kubelet.registered()
        pod = await kubelet.admit("default", "trainer", {"train": 30})
        reader, writer = await asyncio.open_unix_connection(registration.path)
        allocator.delay_s = 60
        starting = asyncio.create_task(kubelet.start(pod, "train"))  # this call uses the old socket
        await eventually(lambda: len(kubelet.registrations) >= 1)
        await asyncio.sleep(0.1)
        registration.path.unlink()
        await eventually(lambda: len(kubelet.registrations) >= 2)
        assert "socket removed" in said()
        with pytest.raises(StartFailed, match="connection is closing"):  # kubelet closes it itself, and tries again
            await starting
        allocator.delay_s = 0
        await kubelet.registered()
        await kubelet.start(pod, "train")
        async with asyncio.timeout(30):  # the server of the old socket ends
            await reader.read()
        writer.close()
        await eventually(lambda: service.watchers == 1)
        assert registration.path.exists()


async def test_the_whole_directory_may_go_and_come_back(directory: Path) -> None:
    plugins = directory / "device-plugins"
    async with plugin(plugins) as (_, registration):
        for _ in range(2):
            async with FakeKubelet(directory) as kubelet:
                await kubelet.registered()
            shutil.rmtree(directory / "device-plugins")
            await eventually(lambda: registration.state is State.WAITING)


async def test_a_refusal_is_said_once_and_tried_again_less_and_less_often(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_module, "RETRY_FIRST_S", 0.3)
    async with FakeKubelet(directory) as kubelet:
        kubelet.refusal = "the ResourceName is invalid"
        async with plugin(kubelet.plugins) as (_, registration):
            await eventually(lambda: len(kubelet.registrations) >= 3)  # at 0, 0.3 and 0.9 s, with polls every 0.2 s
            (record,) = caplog.records
            assert record.message == "kubelet refused the registration"
            assert record.__dict__["cause"] == "UNKNOWN: the ResourceName is invalid"
            assert registration.state is State.WAITING
            kubelet.refusal = ""
            await kubelet.registered()


async def test_a_socket_that_cannot_be_made_is_said_with_its_cause(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeKubelet(directory) as kubelet:
        in_the_way = kubelet.plugins / "sharepod.io_gpu.sock"
        in_the_way.mkdir()
        async with plugin(kubelet.plugins) as (_, registration):
            await eventually(lambda: caplog.records)
            record = caplog.records[0]
            assert (record.message, kubelet.registrations) == ("no socket for kubelet", [])
            assert "Is a directory" in record.__dict__["cause"]
            assert {path.name for path in kubelet.plugins.iterdir()} == {"kubelet.sock", in_the_way.name}
            in_the_way.rmdir()
            await kubelet.registered()
            assert registration.path.is_socket()


async def test_a_kubelet_that_stops_reading_is_registered_with_again(
    directory: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_module, "UNWATCHED_S", 0.5)
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins) as (service, _):
        endpoint = await kubelet.registered()
        await endpoint.stop()  # kubelet does so if a list is too large for it
        await eventually(lambda: len(kubelet.registrations) >= 2)
        await eventually(lambda: service.watchers == 1)
        assert "kubelet does not read the units: registering again" in said()


async def test_of_two_plugins_the_next_one_serves_and_the_one_before_stands_by_until_it_ends(
    directory: Path, said: Said
) -> None:
    before, after = MemoryAllocator(), MemoryAllocator()
    async with FakeKubelet(directory) as kubelet, contextlib.AsyncExitStack() as old:
        service, registration = await old.enter_async_context(plugin(kubelet.plugins, before))
        await kubelet.registered()
        pod = await kubelet.admit("default", "trainer", {"train": 30})
        async with plugin(kubelet.plugins, after) as (_, taking):

            async def are_settled() -> None:
                await eventually(lambda: (registration.state, taking.state) == (State.STANDING_BY, State.REGISTERED))
                await asyncio.sleep(5 * kubelet_module.POLL_S)  # two plugins, started by mistake, must not alternate
                assert (registration.state, taking.state) == (State.STANDING_BY, State.REGISTERED)
                assert service.watchers == 0

            await are_settled()
            assert "another device plugin serves: taking over from it" in said()
            assert "another device plugin has taken over: this one stands by" in said()
            assert len(kubelet.registrations) == 2
            await kubelet.relaunch()  # the serving plugin makes its socket anew before the other steps in
            await kubelet.registered()
            await are_settled()
            await old.aclose()  # the end of the old plugin must take nothing from the new one
            assert taking.path.is_socket()
            await asyncio.sleep(2 * kubelet_module.POLL_S)
            await kubelet.registered()
            await kubelet.start(pod, "train")
            assert (len(before.started), len(after.started)) == (0, 1)
            assert len(kubelet.registrations) == 3


async def test_a_plugin_that_stands_by_steps_in_when_the_other_is_dead_for_a_while(directory: Path) -> None:
    async with FakeKubelet(directory) as kubelet, plugin(kubelet.plugins) as (service, registration):
        await kubelet.registered()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(kubelet.plugins / "other"))
            other.listen(1000)
            (kubelet.plugins / "other").rename(registration.path)
            await eventually(lambda: registration.state is State.STANDING_BY)
            await eventually(lambda: service.watchers == 0)  # kubelet no longer listens to it
            died = time.monotonic()
        await eventually(lambda: registration.state is State.REGISTERED)
        assert time.monotonic() - died > (kubelet_module.STAND_BY_LOOKS - 2) * kubelet_module.POLL_S
        await eventually(lambda: kubelet.allocatable == 100)


async def test_a_stop_does_not_wait_for_a_kubelet_that_does_not_answer(directory: Path) -> None:
    plugins = directory / "device-plugins"
    plugins.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(plugins / "kubelet.sock"))
        silent.listen()
        async with asyncio.timeout(kubelet_module.REGISTER_TIMEOUT_S - 1):
            async with plugin(plugins) as (_, registration):
                await eventually(registration.path.exists)
                await asyncio.sleep(0.2)
            assert not registration.path.exists()


def test_a_directory_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    service = PluginService(MemoryAllocator(), Units([(A, True)]))
    with pytest.raises(PluginError, match="too long for a socket, 107 bytes"):
        Registration(service, tmp_path / ("x" * 100))
