"""Kueue's queues for shares: valid for Kueue's API, and of one mind with what a pod takes of devices."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema
import kubernetes_validate
import kueue_api
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kustomize import render
from manifests import DAEMONSET, VERSIONS
from test_examples import understood
from test_policy import refusals

from sharepod.scheduler.gang import read_gang
from sharepod.scheduler.pod import read_pod
from sharepod.webhook.gate import decide as gate
from sharepod.webhook.review import Request

Object = dict[str, Any]
FOLDER = DAEMONSET / "kueue"
QUEUES, EXAMPLE = render(FOLDER), render(FOLDER / "example")
README = (FOLDER / "README.md").read_text()
UNITS = "sharepod.io/gpu"


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


[JOB] = of_kind("Job", EXAMPLE)
[COHORT] = of_kind("Cohort", QUEUES)


def quota(item: Object) -> dict[str, int]:
    """Return the numbers of a queue's or a cohort's one resource and one flavor."""
    [group] = item["spec"]["resourceGroups"]
    [flavor] = group["flavors"]
    [resource] = flavor["resources"]
    assert group["coveredResources"] == [resource["name"]] == [UNITS]
    return {key: int(value) for key, value in resource.items() if key != "name"}


@pytest.mark.parametrize("item", [*QUEUES, *EXAMPLE], ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
def test_every_object_is_valid_with_unknown_fields_forbidden(item: Object) -> None:
    if item["apiVersion"].startswith(kueue_api.GROUP):
        kueue_api.check(item)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)
    assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sharepod"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "preemption", "reclaimWithinCohort"), "Always"),
        (("spec", "cohort"), "sharepod"),
        (("spec", "fairSharing", "weight"), "heavy"),
        (("spec", "resourceGroups"), []),
    ],
)
def test_what_kueue_does_not_have_would_be_found(path: tuple[str, ...], value: object) -> None:
    item = copy.deepcopy(of_kind("ClusterQueue", QUEUES)[0])
    *to, last = path
    at = item
    for key in to:
        at = at[key]
    at[last] = value
    with pytest.raises(jsonschema.ValidationError):
        kueue_api.check(item)


def test_queues_are_of_flavors_and_cohorts_that_are_there() -> None:
    flavors = {item["metadata"]["name"] for item in of_kind("ResourceFlavor", QUEUES)}
    for item in (*of_kind("ClusterQueue", QUEUES), COHORT):
        used = {flavor["name"] for group in item["spec"]["resourceGroups"] for flavor in group["flavors"]}
        assert used <= flavors
    queues = {item["metadata"]["name"]: item for item in of_kind("ClusterQueue", QUEUES)}
    assert {item["spec"]["cohortName"] for item in queues.values()} == {COHORT["metadata"]["name"]}
    [local] = of_kind("LocalQueue", EXAMPLE)
    [namespace] = of_kind("Namespace", EXAMPLE)
    selector = queues[local["spec"]["clusterQueue"]]["spec"]["namespaceSelector"]["matchLabels"]
    assert selector.items() <= namespace["metadata"]["labels"].items()
    assert local["metadata"]["namespace"] == JOB["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert JOB["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    classes = {item["metadata"]["name"]: item["value"] for item in of_kind("WorkloadPriorityClass", QUEUES)}
    assert JOB["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] in classes
    assert classes["sharepod-high"] > classes["sharepod-low"]


def test_the_readmes_table_is_what_the_quotas_come_to() -> None:
    rows = {
        cells[0].strip("` ").removeprefix("cohort `"): cells[1:]
        for line in README.splitlines()
        if line.startswith(("| `sharepod-", "| cohort"))
        and (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    queues = {item["metadata"]["name"]: quota(item) for item in of_kind("ClusterQueue", QUEUES)}
    shared = quota(COHORT)["nominalQuota"]
    total = shared + sum(numbers["nominalQuota"] for numbers in queues.values())
    devices = int({"sixteen": 16}[re.findall(r"These manifests are for (\w+) devices", README)[0]])
    assert total == 100 * devices
    assert rows["sharepod"][0] == str(shared)
    assert rows["sharepod"][3] == str(total)
    for name, numbers in queues.items():
        own = numbers["nominalQuota"]
        # What a queue may use at most: its own, and of what the cohort and the others lend as much as it may borrow.
        lent = shared + sum(
            other.get("lendingLimit", other["nominalQuota"]) for key, other in queues.items() if key != name
        )
        most = own + min(numbers.get("borrowingLimit", lent), lent)
        kept = own - numbers.get("lendingLimit", own)
        assert rows[name][0] == str(own)
        assert rows[name][1] == str(numbers.get("borrowingLimit", "what others do not use"))
        assert rows[name][2:] == [str(kept), str(most)]
        assert most <= total
        assert all(number % 100 == 0 for number in numbers.values()), "whole devices: nothing is lost by rounding"


def test_models_in_the_readme_are_a_valid_flavor() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    kueue_api.check(yaml.safe_load(block))


def test_the_job_is_admitted_by_the_policy_gated_and_a_gang_of_the_size_that_kueue_counts() -> None:
    template, spec = copy.deepcopy(JOB["spec"]["template"]), JOB["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] |= {"name": "train-0", "namespace": "team-a", "uid": "u"}
    assert refusals("annotations", pod) == []
    [terms] = understood(pod)
    gang = read_gang(pod["metadata"]["annotations"])
    assert gang is not None
    assert gang.size == spec["parallelism"] == spec["completions"]
    assert gang.least == int(JOB["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"])
    assert spec["suspend"] is True, "Kueue starts it"
    read = read_pod(pod)
    assert read is not None
    assert read.units == 50
    assert terms is not None
    own = quota(of_kind("ClusterQueue", QUEUES)[0])["nominalQuota"]
    assert read.units * spec["parallelism"] == 400 <= own
    assert f"{spec['parallelism'] * read.units} units" in (FOLDER / "example" / "job.yaml").read_text()
    decision = gate(Request("u", "team-a", "train-0", "CREATE", dry_run=False, object=pod))
    assert decision.patch


def test_who_is_started_anew_by_kueue_was_started_anew_by_us_before() -> None:
    configuration = yaml.safe_load((FOLDER / "configuration.yaml").read_text())
    gang = read_gang(JOB["spec"]["template"]["metadata"]["annotations"])
    minutes = re.fullmatch(r"(\d+)m", configuration["waitForPodsReady"]["timeout"])
    assert minutes is not None
    assert gang is not None
    assert int(minutes[1]) * 60 > gang.timeout_s
    # All that is requested beside shares is of no queue, and what is in no queue lets no job in.
    excluded = tuple(configuration["resources"]["excludeResourcePrefixes"])
    assert all(name.startswith(excluded) for name in ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi"))
    assert not UNITS.startswith(excluded)
    assert {"borrowWithinCohort"}.isdisjoint(str(QUEUES)), "not with fair sharing"


UNIT = st.integers(0, 100)
CONTAINER = st.builds(
    lambda number, units, requests: {
        "name": f"c{number}",
        "image": "i",
        "resources": ({"limits": {UNITS: str(units)}} | ({"requests": {UNITS: str(units)}} if requests else {}))
        if units
        else {},
    },
    st.integers(0, 10**6), UNIT, st.booleans(),
)  # fmt: skip


def units_of(container: Object) -> int:
    return int(container["resources"].get("limits", {}).get(UNITS, 0))


def counted(pod: Object) -> int:
    """Return what kubelet and Kueue count for a pod: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers

    Those that stay are added up; an init container that ends counts beside the sidecars that were started before it.
    """

    beside, most = 0, 0
    for container in pod["spec"]["initContainers"]:
        if container.get("restartPolicy") == "Always":
            beside += units_of(container)
            most = max(most, beside)
        else:
            most = max(most, beside + units_of(container))
    return max(most, beside + sum(units_of(container) for container in pod["spec"]["containers"]))


@given(st.lists(CONTAINER, min_size=1, max_size=3), st.lists(st.tuples(CONTAINER, st.booleans()), max_size=3))
def test_what_kueue_counts_for_a_pod_is_what_it_takes_of_devices(
    main: list[Object], init: list[tuple[Object, bool]]
) -> None:
    early = [container | ({"restartPolicy": "Always"} if stays else {}) for container, stays in init]
    for number, container in enumerate([*main, *early]):
        container["name"] = f"c{number}"
    metadata = {"name": "p", "namespace": "n", "uid": "u"}
    pod = {"metadata": metadata, "spec": {"containers": main, "initContainers": early}}
    read = read_pod(pod)
    assert read is not None
    assert not read.refusal
    # An init container has the devices of one share that begins after it. Is it larger, that share is as large.
    larger = any(
        units_of(container) > max(map(units_of, [*main, *(later for later in early[at:] if "restartPolicy" in later)]))
        for at, container in enumerate(early)
        if "restartPolicy" not in container
    )
    assert read.units >= counted(pod) if larger else read.units == counted(pod)
