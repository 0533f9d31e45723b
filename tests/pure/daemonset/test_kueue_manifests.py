"""Test that Kueue's queues for shares agree with their page, and with what a pod takes of devices.

The e2e tests apply the queues to Kueue itself, which refuses fields and references that it does not know.
"""

import copy
import re

import pytest
import yaml
from manifests import DAEMONSET, OBJECTS, Object, one
from test_policy import refusals, understood

from sharepod.scheduler.controller.gang_annotations import read_gang
from sharepod.scheduler.state.pod import read_pod

FOLDER = DAEMONSET / "kueue"
README = (FOLDER / "README.md").read_text()
UNITS = "sharepod.io/gpu"
QUEUES = {item["metadata"]["name"]: item for item in OBJECTS["kueue"] if item["kind"] == "ClusterQueue"}
FLAVOR, COHORT = one(OBJECTS["kueue"], "ResourceFlavor"), one(OBJECTS["kueue"], "Cohort")
JOB = one(OBJECTS["kueue/example"], "Job")


def quota(item: Object) -> dict[str, int]:
    """Return the numbers of a queue's or a cohort's one resource and one flavor."""
    [group] = item["spec"]["resourceGroups"]
    [flavor] = group["flavors"]
    [resource] = flavor["resources"]
    assert flavor["name"] == FLAVOR["metadata"]["name"]
    assert group["coveredResources"] == [resource["name"]] == [UNITS]
    return {key: int(value) for key, value in resource.items() if key != "name"}


def test_the_readmes_table_is_what_the_quotas_come_to_and_its_flavor_of_the_kind_that_is_shipped() -> None:
    rows = {
        cells[0].strip("` ").removeprefix("cohort `"): cells[1:]
        for line in README.splitlines()
        if line.startswith(("| `sharepod-", "| cohort"))
        and (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    queues = {name: quota(item) for name, item in QUEUES.items()}
    shared = quota(COHORT)["nominalQuota"]
    total = shared + sum(numbers["nominalQuota"] for numbers in queues.values())
    assert "These manifests are for sixteen devices" in README
    assert total == 100 * 16
    assert rows["sharepod"] == [str(shared), "", "", str(total)]
    for name, numbers in queues.items():
        assert QUEUES[name]["spec"]["cohortName"] == COHORT["metadata"]["name"]
        own = numbers["nominalQuota"]
        # The most that a queue may use: its own quota, and what it may borrow of what the cohort and the others lend.
        lent = shared + sum(
            other.get("lendingLimit", other["nominalQuota"]) for key, other in queues.items() if key != name
        )
        most = own + min(numbers.get("borrowingLimit", lent), lent)
        kept = own - numbers.get("lendingLimit", own)
        borrowed = str(numbers.get("borrowingLimit", "what others do not use"))
        assert rows[name] == [str(own), borrowed, str(kept), str(most)]
        assert all(number % 100 == 0 for number in numbers.values()), "whole devices: nothing is lost by rounding"
    [block] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    model = yaml.safe_load(block)
    assert (model["apiVersion"], model["kind"]) == (FLAVOR["apiVersion"], FLAVOR["kind"])


def test_the_job_is_admitted_by_the_policy_and_a_gang_of_the_size_that_kueue_counts() -> None:
    spec = JOB["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(spec["template"])}
    pod["metadata"] |= {"name": "train-0", "namespace": "team-a", "uid": "u"}
    assert refusals("annotations", pod) == []
    assert len(understood(pod)) == 1
    gang, read = read_gang(pod["metadata"]["annotations"]), read_pod(pod)
    assert gang is not None
    assert gang.size == spec["parallelism"] == spec["completions"]
    assert gang.least == int(JOB["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"])
    assert read is not None
    assert f"{spec['parallelism'] * read.units} units" in (FOLDER / "example" / "job.yaml").read_text()


def test_who_is_started_anew_by_kueue_was_started_anew_by_us_before() -> None:
    configuration = yaml.safe_load((FOLDER / "configuration.yaml").read_text())
    gang = read_gang(JOB["spec"]["template"]["metadata"]["annotations"])
    minutes = re.fullmatch(r"(\d+)m", configuration["waitForPodsReady"]["timeout"])
    assert minutes is not None
    assert gang is not None
    assert int(minutes[1]) * 60 > gang.timeout_s
    # Requests beside shares belong to no queue. Kueue would admit no job with them, so they must be excluded.
    excluded = tuple(configuration["resources"]["excludeResourcePrefixes"])
    assert all(name.startswith(excluded) for name in ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi"))
    assert not UNITS.startswith(excluded)
    assert "borrowWithinCohort" not in str(QUEUES), "not with fair sharing"


def container(units: int, **more: str) -> Object:
    return {"name": f"c{units}", "image": "i", "resources": {"limits": {UNITS: str(units)}}, **more}


@pytest.mark.parametrize(
    ("row", "units", "annotations", "containers", "before"),
    [
        ("`sharepod.io/gpu: 30` | 30", 30, {}, [container(30)], []),
        ('`sharepod.io/gpu: 100`, `sharepod.io/devices: "2"` | 100: half of each of two devices', 100,
         {"sharepod.io/devices": "2"}, [container(100)], []),
        ("two containers with 30 and 20 | 50", 50, {}, [container(30), container(20)], []),
        ("an init container with 60 before a container with 30 | 60", 60, {}, [container(30)], [container(60)]),
        ("`sharepod.io/limit`, `sharepod.io/memory` | nothing more: quotas are of what is guaranteed", 30,
         {"sharepod.io/limit": "60", "sharepod.io/memory": "1Gi"}, [container(30)], []),
    ],
)  # fmt: skip
def test_a_pod_takes_of_devices_what_the_readme_says_that_kueue_counts(
    row: str, units: int, annotations: dict[str, str], containers: list[Object], before: list[Object]
) -> None:
    assert f"| {row} |" in README
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations}
    read = read_pod({"metadata": metadata, "spec": {"containers": containers, "initContainers": before}})
    assert read is not None
    assert read.units == units
