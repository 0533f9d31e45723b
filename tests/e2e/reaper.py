"""Takes pods that are to go from the API server once their containers have ended, as kubelets of later releases do.

A kubelet of 1.20 looks every ten seconds for those that it may take, and often it is the second or third look at which
it does. Runs on the first node, with the machine's Python and nothing else. What has not ended is kubelet's business.
"""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENDED = ("Succeeded", "Failed")
MIRROR = "kubernetes.io/config.mirror"
STARTING = ("ContainerCreating", "PodInitializing")
WATCH_S = 300
TIMEOUT_S = 10
RETRY_S = 0.5
Object = dict[str, Any]


def is_over(pod: Object) -> bool:
    """Tell whether a pod is to go, and kubelet has told that nothing of it runs or begins to."""
    metadata, status = pod["metadata"], pod["status"]
    if "deletionTimestamp" not in metadata or "nodeName" not in pod["spec"]:
        return False
    if MIRROR in metadata.get("annotations", {}):
        return False
    states = [one["state"] for kind in ("initContainerStatuses", "containerStatuses") for one in status.get(kind) or []]
    if not states:
        return status.get("phase") in ENDED
    if any("running" in state for state in states):
        return False
    # Containers that are gone altogether are told of as ones that are about to come; a pod that ran has none such.
    starts = any(state.get("waiting", {}).get("reason") in STARTING for state in states)
    return not starts or status.get("phase") != "Pending"


class ApiServer:
    """The API server, as its administrator asks it."""

    def __init__(self, address: str, keys: Path) -> None:
        self._address = address
        self._context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self._context.load_cert_chain(keys / "admin.crt", keys / "admin.key")

    def pods(self) -> Iterator[Object]:
        """Yield all pods, and each again as it changes, for some minutes. Raises OSError, ValueError."""
        with self._open("/api/v1/pods", timeout_s=TIMEOUT_S) as response:
            listed = json.load(response)
        yield from listed["items"]
        since = f"watch=1&resourceVersion={listed['metadata']['resourceVersion']}&timeoutSeconds={WATCH_S}"
        with self._open(f"/api/v1/pods?{since}", timeout_s=WATCH_S + TIMEOUT_S) as response:
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "DELETED":
                    yield event["object"]

    def forget(self, pod: Object) -> None:
        """Have it forget a pod. One that it has forgotten, or that is another one by now, is no error."""
        name, namespace, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        try:
            with self._open(path, timeout_s=TIMEOUT_S, method="DELETE", body=body):
                print(f"{namespace}/{name} {uid}", flush=True)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                raise

    def _open(self, path: str, *, timeout_s: float, method: str = "GET", body: Object | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the API server's address
            self._address + path,
            json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        return urllib.request.urlopen(request, context=self._context, timeout=timeout_s)  # noqa: S310


def main() -> None:
    address, keys = sys.argv[1:]
    server = ApiServer(address, Path(keys))
    while True:
        try:
            for pod in server.pods():
                if is_over(pod):
                    server.forget(pod)
        except (OSError, ValueError) as error:
            print(error, flush=True)
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
