"""Reads what the scheduler needs of a pod from the API server's JSON. Pure values.

A pod's annotations are text from a tenant. If they cannot be read, the pod gets one clear refusal. It still counts with
its processors and memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sharepod.agent.shares.share import MIB, WHOLE_MILLIPERCENT
from sharepod.deviceplugin.core.terms import PREFIX, YIELD, TermsError, read_terms, shown
from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube import pod as pods
from sharepod.kube import quantity
from sharepod.kube.objects import at
from sharepod.scheduler.controller.gang_annotations import Gang, read_gang
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.constraints import ANY_NODE, Constraints, read_constraints
from sharepod.scheduler.placement.request import DEVICE_MILLI, SHARES_MAX, PodRequest, ShareRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from sharepod.deviceplugin.core.terms import PodTerms
    from sharepod.kube.pod import Container

MODEL: Final = PREFIX + "model"
AFFINITY: Final = PREFIX + "device-affinity"
ANTI_AFFINITY: Final = PREFIX + "device-anti-affinity"
NODE: Final = PREFIX + "node"
GATE: Final = PREFIX + "gate"
"""Name of the scheduling gate."""
_DEVICE_KEY: Final = re.compile(re.escape(PREFIX) + r"(.+[.])?device")
_GROUP: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MODELS_TEXT_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod."""

    uid: str
    namespace: str
    name: str
    node: str
    """Where it is bound; empty: nowhere yet."""
    priority: int
    created: str
    """When it was created, as the API server writes it; this sorts by time."""
    ended: bool
    """Its containers have ended for good."""
    deleting: bool
    request: PodRequest
    """What it asks of a node; its shares are empty where they cannot be read."""
    containers: tuple[str, ...] = ()
    """Of each share, the container that holds it."""
    early: tuple[tuple[str, int], ...] = ()
    """Init containers with a share that end before the others begin: name, index of the share that lends devices."""
    chosen: tuple[tuple[str, ...], ...] = ()
    """Of each share, the UUIDs that were chosen for it; empty: not all are chosen."""
    device_keys: tuple[str, ...] = ()
    """Its annotations that name devices."""
    affinity: str = ""
    """Pods of the namespace with the same word are on the same devices; empty: none."""
    anti_affinity: str = ""
    """Pods of the namespace with the same word are on no common device; empty: none."""
    gang: Gang | None = None
    """None: it belongs to none."""
    gated: bool = False
    """It has SharePod's scheduling gate: it is not bound before the gate is removed."""
    withheld: bool = False
    """Other controllers hold it by gates, as Kueue does until there is quota: SharePod does not place it yet."""
    destined: str = ""
    """The node that its gate was removed for; empty once it is bound."""
    yields: str = ""
    """How it makes room for others for the time being, one of terms.YIELDS; empty: it does not."""
    constraints: Constraints = ANY_NODE
    """What it demands of its node in addition to room."""
    controller: str = ""
    """Uid of the object that makes another pod in its place; empty: there is none."""
    preempts: bool = True
    """Other pods may yield for it."""
    running: bool = False
    """Its containers have started."""
    started: str = ""
    """When kubelet took it on, as the API server writes it."""
    refusal: str = ""
    """Why its shares cannot be placed anywhere."""

    @property
    def created_s(self) -> float:
        """Return when it was made, in seconds since 1970; 0 where that cannot be read."""
        return _unix_s(self.created)

    @property
    def started_s(self) -> float:
        """Return when kubelet took it on, in seconds since 1970; 0 where that cannot be read."""
        return _unix_s(self.started)

    @property
    def place(self) -> str:
        """Return the node on which it counts: where it is bound or destined to be; empty: nowhere."""
        return self.node or self.destined

    @property
    def units(self) -> int:
        """Return how many percents of devices kubelet counts for it."""
        return self.request.milli * 100 // DEVICE_MILLI

    @property
    def title(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


def read_pod(item: object, resource: str = RESOURCE) -> Pod | None:
    """Return the pod in an object from the API server; None: the object is no pod.

    `resource`: the one of which a pod asks for percents of a device. If its shares cannot be read, `refusal` says why.
    """
    found = pods.read_pod(item, resource)
    if found is None or not isinstance(item, dict):
        return None
    pod = Pod(
        uid=found.uid,
        namespace=found.namespace,
        name=found.name,
        node=found.node,
        priority=found.priority,
        created=found.created,
        ended=found.phase in pods.FINISHED,
        deleting=found.deleting,
        request=PodRequest(_effective(found, "cpu", quantity.milli), _effective(found, "memory", quantity.mib)),
        withheld=any(gate != GATE for gate in found.gates),
        gated=GATE in found.gates,
        constraints=read_constraints(at(item, "spec")),
        controller=found.controller,
        preempts=found.preempts,
        running=found.phase == "Running",
        started=found.started,
    )
    if not any(one.units for one in found.all_containers):
        return pod
    try:
        return _with_shares(pod, found)
    except (TermsError, PlacementError) as error:
        return replace(pod, refusal=str(error))


def _unix_s(text: str) -> float:
    """Return a time that the API server wrote, in seconds since 1970; 0: it cannot be read."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _with_shares(pod: Pod, found: pods.Pod) -> Pod:
    """Return a pod with its shares, and with what else its annotations say. Raises TermsError, PlacementError.

    `found` is the same pod, as kube/pod.py reads it. An init container that ends before the others begin uses the share
    of another container, if one fits (`_lend`).
    """
    annotations, names = found.annotations, [one.name for one in found.all_containers]

    def held(asking: Iterable[Container]) -> list[tuple[str, PodTerms]]:
        """Return the containers that ask for a share, with the terms of each."""
        return [
            (one.name, read_terms(annotations, one.name, one.units, containers=names)) for one in asking if one.units
        ]

    main = held(one for one in found.all_containers if one.stays)
    if len(main) > SHARES_MAX:
        raise PlacementError(f"{len(main)} containers hold shares: at most {SHARES_MAX} of a pod can be placed")
    shares = [_share(terms) for _, terms in main]
    _set_beside(shares, [terms for _, terms in main])
    early: list[tuple[str, int]] = []
    begun: set[str] = set()  # sidecars that run beside the init containers after them
    for one in found.init_containers:
        if one.stays:
            begun.add(one.name)
            continue
        for name, terms in held([one]):
            in_use = {index for index, (other, _) in enumerate(main) if other in begun}
            early.append((name, _lend(shares, _share(terms), in_use)))
    containers = tuple(name for name, _ in main) + ("",) * (len(shares) - len(main))  # "": an init container's own
    chosen = tuple(terms.chosen for _, terms in main)
    return replace(
        pod,
        request=replace(pod.request, shares=tuple(shares), models=_models(annotations.get(MODEL, ""))),
        containers=containers,
        early=tuple(early),
        chosen=chosen if chosen and all(chosen) else (),
        device_keys=tuple(sorted(key for key in annotations if _DEVICE_KEY.fullmatch(key))),
        affinity=_group(annotations, AFFINITY),
        anti_affinity=_group(annotations, ANTI_AFFINITY),
        gang=read_gang(annotations),
        destined="" if pod.node or pod.gated else annotations.get(NODE, ""),
        yields=annotations.get(YIELD, ""),
    )


def _share(terms: PodTerms) -> ShareRequest:
    """Return the share that a container's terms ask for, as placement counts it: in milli of a device and in MiB."""
    memory = terms.memory_limit_bytes
    return ShareRequest(
        milli=terms.request_millipercent * DEVICE_MILLI // WHOLE_MILLIPERCENT,
        devices=terms.devices,
        mib=None if memory is None else -(-memory // MIB),  # rounded up
        share_class=terms.share_class,
        limit_milli=terms.limit_millipercent * DEVICE_MILLI // WHOLE_MILLIPERCENT,
    )


def _set_beside(shares: list[ShareRequest], terms: list[PodTerms]) -> None:
    """Set `beside` of the shares that are to be on one device together: all but the first of them name the first.

    `shares` is changed; `terms` are those of the same containers.
    """
    together = [index for index, one in enumerate(terms) if one.same_device]
    for index in together[1:]:
        shares[index] = replace(shares[index], beside=together[0])


def _lend(shares: list[ShareRequest], asked: ShareRequest, in_use: Collection[int]) -> int:
    """Return the index of the share that lends its devices to an init container; make that share large enough for it.

    `asked`: what the init container asks for. It is added as one more share if no other has just as many devices. The
    init container ends before the other containers begin, so kubelet gives its units to one of these. `in_use`: indices
    of the shares of sidecars, which run beside it and lend nothing. Raises PlacementError for too many shares.
    """
    fitting = [index for index, share in enumerate(shares) if share.devices == asked.devices and index not in in_use]
    if not fitting:
        if len(shares) == SHARES_MAX:
            raise PlacementError(f"containers and init containers hold more than {SHARES_MAX} kinds of shares")
        shares.append(asked)
        return len(shares) - 1
    index = max(fitting, key=lambda number: (shares[number].milli, -number))
    share = shares[index]
    caps = [cap for cap in (share.mib, asked.mib) if cap is not None]
    shares[index] = replace(
        share,
        milli=max(share.milli, asked.milli),
        mib=max(caps, default=None),
        memory_milli=max(share.part_milli, asked.part_milli) if caps else 0,
    )
    return index


def _models(text: str) -> frozenset[str]:
    """Return the models that an annotation names, with commas between them; empty: any. Raises PlacementError."""
    if not text:
        return frozenset()
    if len(text) > _MODELS_TEXT_MAX:
        raise PlacementError(f"{MODEL} has {len(text)} characters: at most {_MODELS_TEXT_MAX} are read")
    names = frozenset(name.strip() for name in text.split(","))
    if not all(names):
        raise PlacementError(f"{MODEL} is {shown(text)}: give names of models with commas between them")
    return names


def _group(annotations: Mapping[str, str], key: str) -> str:
    """Return the word of a device affinity annotation; empty: there is none. Raises PlacementError."""
    text = annotations.get(key, "")
    if text and not _GROUP.fullmatch(text):
        raise PlacementError(f"{key} is {shown(text)}: give one word of letters, digits, -, _ and ., at most 63")
    return text


def _effective(found: pods.Pod, name: str, read: Callable[[str], int]) -> int:
    """Return what a pod takes of its node of one resource, `name`, in the unit in which `read` reads a quantity.

    That is its containers and sidecars together, or an init container with the sidecars before it if that is more
    (KEP-753), and its overhead. It is at most what a PodRequest can have.
    """
    most_at_start = sidecars = 0
    for one in found.init_containers:
        own = read(one.requested(name))
        if one.stays:
            sidecars += own
        most_at_start = max(most_at_start, sidecars if one.stays else sidecars + own)
    together = sidecars + sum(read(one.requested(name)) for one in found.containers)
    return min(max(most_at_start, together) + read(found.overhead.get(name, "0")), 2**31 - 1)


def device_annotations(pod: Pod, devices: tuple[tuple[str, ...], ...]) -> dict[str, str | None]:
    """Return the annotations that name a pod's devices; the value None: this annotation is to be removed.

    `devices`: of each share, the UUIDs of its devices. An init container in `pod.early` gets those of the share at the
    index given there. If all containers get the same devices, one annotation says it for the whole pod.
    """
    containers = list(zip(pod.containers, devices, strict=True)) + [(name, devices[index]) for name, index in pod.early]
    texts = {name: ",".join(uuids) for name, uuids in containers if name}
    removed: dict[str, str | None] = dict.fromkeys(pod.device_keys)
    if len(set(texts.values())) == 1:
        return removed | {f"{PREFIX}device": next(iter(texts.values()))}
    return removed | {f"{PREFIX}{name}.device": text for name, text in texts.items()}
