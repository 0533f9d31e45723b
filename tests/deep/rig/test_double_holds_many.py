"""The double holds the biggest cluster of the placement's bars: lists in seconds, watches that keep up."""

from __future__ import annotations

import asyncio
import time

from contract.connection import Client, Connection

from rig.cluster.apiserver import ApiServer, pod

PODS, NODES = 10_000, 1_000
LIST_S = 5.0


def test_ten_thousand_pods_are_listed_in_pages_and_followed() -> None:
    async def run() -> None:
        async with ApiServer() as server:
            for number in range(NODES):
                server.put_node({"metadata": {"name": f"n{number}"}, "status": {"allocatable": {"cpu": "64"}}})
            for number in range(PODS):
                server.put(pod(f"p{number}", node=f"n{number % NODES}", annotations={"sharepod.io/limit": "60"}))
            address = server.address()
            async with Client(Connection(address)) as client:
                began_s = time.monotonic()
                names, token = [], ""
                while True:
                    more = {"continue": token} if token else {}
                    page = (await client.ask("GET", "/api/v1/pods", limit="500", **more)).body
                    names += [item["metadata"]["name"] for item in page["items"]]
                    if not (token := page["metadata"].get("continue", "")):
                        break
                paged_s = time.monotonic() - began_s
                assert sorted(names) == sorted(f"p{number}" for number in range(PODS))
                began_s = time.monotonic()
                whole = (await client.ask("GET", "/api/v1/pods", resourceVersion="0")).body
                whole_s = time.monotonic() - began_s
                assert len(whole["items"]) == PODS
                assert len((await client.ask("GET", "/api/v1/nodes")).body["items"]) == NODES
                began_s = time.monotonic()
                async with client.watch("/api/v1/pods", resourceVersion=whole["metadata"]["resourceVersion"]) as lines:
                    for number in range(1_000):
                        server.delete(f"p{number}")
                    gone = [(await anext(lines))["object"]["metadata"]["name"] for _ in range(1_000)]
                assert gone == [f"p{number}" for number in range(1_000)]
                watched_s = time.monotonic() - began_s
            print(f"pages {paged_s:.2f} s, whole {whole_s:.2f} s, 1,000 changes {watched_s:.2f} s")
            assert max(paged_s, whole_s, watched_s) <= LIST_S

    asyncio.run(run())
