"""What runs for the plugin's life does not end unnoticed."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from sharepod.deviceplugin.loop import for_ever


async def returns() -> None:
    await asyncio.sleep(0)


async def is_cancelled_within() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


async def sleeps() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("work", [returns, is_cancelled_within])
async def test_work_that_ends_ends_the_plugin(work: Callable[[], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(for_ever(work()))
            tasks.create_task(for_ever(sleeps()))

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert [str(error) for error in caught.value.exceptions] == [f"{work.__name__} ended"]


async def test_work_that_is_stopped_ends_quietly() -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(for_ever(sleeps()))
        await asyncio.sleep(0)
        running.cancel()
    assert running.cancelled()
