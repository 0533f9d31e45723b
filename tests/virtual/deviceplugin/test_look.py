"""Test that callers which ask at once share few calls, and that no caller gets what was seen before it asked."""

import asyncio
import gc

from virtual_time import virtually

from sharepod.deviceplugin.core.coalesce import Look


class Clock:
    """A clock that can be asked for the time; an answer or a refusal takes a second."""

    def __init__(self) -> None:
        self.calls = 0
        self.refuses = False
        self.look = Look(self.ask)

    async def ask(self) -> float:
        self.calls += 1
        seen = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        if self.refuses:
            raise ValueError("refused")
        return seen


@virtually
async def test_those_who_ask_while_a_call_is_under_way_share_the_next_one() -> None:
    clock = Clock()
    asked: list[float] = []
    answers = []
    for _ in range(10):
        asked.append(asyncio.get_running_loop().time())
        answers.append(asyncio.create_task(clock.look.take()))
        await asyncio.sleep(0.15)
    seen = await asyncio.gather(*answers)
    assert clock.calls == 3
    assert all(at >= before for at, before in zip(seen, asked, strict=True))
    await clock.look.take()
    assert clock.calls == 4


@virtually
async def test_a_refusal_is_for_all_who_share_it_and_the_next_asks_anew() -> None:
    clock = Clock()
    clock.refuses = True
    first = asyncio.create_task(clock.look.take())
    await asyncio.sleep(0.5)
    results = await asyncio.gather(first, clock.look.take(), clock.look.take(), return_exceptions=True)
    assert [str(result) for result in results] == ["refused"] * 3
    assert clock.calls == 2
    clock.refuses = False
    assert await clock.look.take() == 2


@virtually
async def test_who_gives_up_takes_nothing_from_the_others_and_at_the_end_nobody_waits_on() -> None:
    clock = Clock()
    hasty, patient = (asyncio.create_task(clock.look.take()) for _ in range(2))
    await asyncio.sleep(0.5)
    hasty.cancel()
    assert await patient == 0
    assert hasty.cancelled()
    assert clock.calls == 1
    asking = asyncio.create_task(clock.look.take())
    await asyncio.sleep(0.5)
    await clock.look.end()
    await asyncio.wait([asking])
    assert asking.cancelled()


@virtually
async def test_a_call_that_fails_when_all_who_asked_have_gone_is_no_error_of_the_loops() -> None:
    clock = Clock()
    clock.refuses = True
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    asking = asyncio.create_task(clock.look.take())
    await asyncio.sleep(0.5)
    asking.cancel()
    await asyncio.sleep(1)
    del clock, asking
    gc.collect()  # an exception that was never retrieved is told now
    await asyncio.sleep(0)
    assert complaints == []
