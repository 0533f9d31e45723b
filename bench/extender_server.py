"""The extender of a large cluster in a process of its own: agents have reported, an API server lists and watches.

`python -m bench.extender_server KUBECONFIG NODES PODS` prints its port when it knows the cluster, then its processor
time for each line of standard input, and ends with it. All but the feed's gRPC is what `sharepod.scheduler.main` runs.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from bench.extender_cluster import DEVICES, node_name, use_of
from sharepod.deviceplugin.api import Api
from sharepod.deviceplugin.cluster import from_kubeconfig
from sharepod.scheduler import heap
from sharepod.scheduler.annotator import Annotator
from sharepod.scheduler.cluster import Cluster
from sharepod.scheduler.extender import Extender
from sharepod.scheduler.extender_server import ExtenderServer
from sharepod.scheduler.informer import Informer
from sharepod.scheduler.policy import Policy
from sharepod.scheduler.usage import Report, UsageBook


async def _serve(kubeconfig: str, nodes: int, pods: int) -> None:
    access = from_kubeconfig(Path(kubeconfig))
    async with Api(access) as api:
        cluster, book = Cluster(), UsageBook()
        now_s = time.monotonic()
        for number in range(nodes):
            use = use_of(number)
            facts = tuple(device.facts for device in use.devices)
            book.apply(node_name(number), Report(use.facts, facts), now_s + 3600)
        informer = Informer(api, access.server, cluster, book, resource="sharepod.io/gpu")
        annotator = Annotator(api, access.server)
        answers = ExtenderServer(
            Extender(cluster), annotator, resource="sharepod.io/gpu",
            not_ready=lambda: informer.not_ready(time.monotonic()),
        )  # fmt: skip
        works = (informer.follow_pods(), informer.follow_nodes(), informer.follow_usage())
        tasks = [asyncio.create_task(work) for work in works]
        while not informer.listed or informer.not_ready(time.monotonic()):
            await asyncio.sleep(0.1)
            for task in tasks:
                if task.done():
                    task.result()
        cluster.settle(time.monotonic())
        mix = cluster.expected()
        cluster.renew(Policy("worth", cluster.board, mix), mix)
        port = await answers.start("127.0.0.1:0", None)
        known = sum(1 for _ in cluster.pods())
        print(json.dumps({"port": port, "pods": known, "devices": nodes * DEVICES}), flush=True)
        if known != pods:
            raise SystemExit(f"{known} of {pods} pods are known")
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({"cpu_s": time.process_time(), "written": annotator.written}), flush=True)
        for task in tasks:
            task.cancel()
        await annotator.stop()
        await answers.stop()


def main() -> int:
    """Serve until the standard input ends."""
    heap.tune()
    kubeconfig, nodes, pods = sys.argv[1:]
    asyncio.run(_serve(kubeconfig, int(nodes), int(pods)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
