"""A device plugin as kubelet sees it: the connection to it, and the last list of its devices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import grpc

from sharepod.proto import deviceplugin_pb2 as pb
from sharepod.proto import deviceplugin_pb2_grpc as rpc

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

Response = TypeVar("Response")

RECEIVE_LIMIT_BYTES = 4 * 2**20
DIAL_TIMEOUT_S = 10.0


class CallFailed(Exception):
    """A call to a plugin failed. The text is in Go's format."""


def status_text(error: grpc.aio.AioRpcError) -> str:
    """Return an rpc's error as Go prints it. A pod's status has it in that form."""
    code = "".join(word.title() for word in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


class Endpoint:
    """One registration of a plugin. The next registration of the resource replaces it."""

    def __init__(self, path: Path) -> None:
        self.options = pb.DevicePluginOptions()
        self.devices: dict[str, bool] = {}
        """By id: whether the device is healthy."""
        self.lists = 0
        self.largest_bytes = 0
        self.stopped = False
        """The plugin or the double has ended the list."""
        self.error = ""
        """Why the list ended, if it failed."""
        options = (
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", options=options)
        self.stub = rpc.DevicePluginStub(self._channel)
        self._watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect to the plugin. Raises TimeoutError, or AioRpcError when it does not tell its options."""
        await asyncio.wait_for(self._channel.channel_ready(), DIAL_TIMEOUT_S)
        self.options = await self.stub.GetDevicePluginOptions(pb.Empty())

    async def call(self, call: grpc.aio.UnaryUnaryCall[Any, Response]) -> Response:
        """Wait for a call's answer. Raises CallFailed.

        If this connection is closed meanwhile, the call fails too, as in Go. Only a cancelled caller is cancelled.
        """
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise CallFailed(status_text(error)) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.stopped or (task and task.cancelling()):
                raise
            raise CallFailed("rpc error: code = Canceled desc = grpc: the client connection is closing") from None

    def watch(self) -> None:
        """Begin to follow the plugin's list of devices, in a task of its own."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Keep the newest list of devices, until the plugin or `stop` ends the list. Then no device is healthy."""
        try:
            async for response in self.stub.ListAndWatch(pb.Empty()):
                self.devices = {device.id: device.health == "Healthy" for device in response.devices}
                assert all(device.health in ("Healthy", "Unhealthy") for device in response.devices)
                assert len(self.devices) == len(response.devices), "an id is there twice"
                assert all(0 < len(name) <= 63 for name in self.devices)
                self.lists += 1
                self.largest_bytes = max(self.largest_bytes, response.ByteSize())
        except grpc.aio.AioRpcError as error:
            self.error = status_text(error)
        finally:
            self.stopped = True
            self.devices = dict.fromkeys(self.devices, False)

    async def stop(self) -> None:
        """End the list and close the connection."""
        self.stopped = True
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._channel.close()
