"""Whatever is written on a pod: a refusal in one line, or a pod that the device plugin takes, and only once."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_pods import H200, Object, decided, patched, pod, request, right_pods, shares
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.webhook import hami, kai, kubeshare
from sharepod.webhook.ask import Defaults
from sharepod.webhook.review import Decision
from sharepod.webhook.translate import MARK, RESOURCE, decide

FRACTIONS = st.integers(0, 110).map(lambda percent: f"{percent / 100:.2f}")
COUNTS = st.integers(0, 18).map(str)
MEBIBYTES = st.sampled_from(["1", "4096", "144384", "0", "1073741824", "1073741825"])
BYTES = st.sampled_from(["0", "1048575", "1048576", "10737418241", "1125899906842624", "1125899906842625"])
GARBAGE = st.one_of(st.text(max_size=8), st.sampled_from(["0.5", "1", "4k", "1e3", "50%", "١"]))
DEFAULTS = st.builds(
    Defaults,
    memory_only_percent=st.integers(1, 100),
    device_memory_bytes=st.sampled_from([None, 2**20, 24 * 2**30, H200]),
)


def said(words: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[dict[str, str]]:
    """Return some of these words, each with a value of its kind or with any other."""
    optional = {key: st.one_of(values, values, values, GARBAGE) for key, values in words.items()}
    return st.fixed_dictionaries({}, optional=optional)


KAI_WORDS = said(
    {
        kai.FRACTION: FRACTIONS,
        kai.MEMORY: MEBIBYTES,
        kai.DEVICES: COUNTS,
        kai.CONTAINER: st.sampled_from("abz"),
        kai.COMPUTE: st.integers(1, 100).map(str),
    }
)
HAMI_WORDS = said(
    {
        "nvidia.com/gpu": COUNTS,
        hami.MEMORY: MEBIBYTES,
        hami.MEMORY_PERCENT: st.integers(0, 101).map(str),
        hami.COMPUTE: st.integers(0, 101).map(str),
        hami.PRIORITY: st.sampled_from("01"),
    }
)
KUBESHARE_WORDS = said({kubeshare.REQUEST: FRACTIONS, kubeshare.LIMIT: FRACTIONS, kubeshare.MEMORY: BYTES})
OUR_WORDS = said(
    {
        "sharepod.io/class": st.sampled_from(["batch", "latency"]),
        "sharepod.io/a.same-device": st.just("true"),
        "sharepod.io/paused": st.sampled_from(["true", "false"]),
        "sharepod.io/limit": st.just("60"),
    }
)
NOTHING = st.just({})


@st.composite
def foreign_pods(draw: st.DrawFn) -> Object:
    """Return a pod that is mostly written for one system, and sometimes for more, or in our words too."""
    system = draw(st.sampled_from(["kai", "hami", "kubeshare", "all"]))
    annotations = draw(KAI_WORDS) if system in ("kai", "all") else {}
    labels = draw(KUBESHARE_WORDS) if system in ("kubeshare", "all") else {}
    count = draw(st.integers(1, 3 if system != "kubeshare" else 1))
    resources = [draw(HAMI_WORDS) if system in ("hami", "all") else {} for _ in range(count)]
    if draw(st.integers(0, 3)) == 0:
        annotations |= draw(OUR_WORDS)
    return pod(*resources, annotations=annotations, labels=labels, scheduler="kai-scheduler")


@given(item=right_pods(), defaults=DEFAULTS)
@settings(max_examples=400, deadline=None)
def test_a_pod_that_is_rightly_written_is_understood(item: Object, defaults: Defaults) -> None:
    decision = decided(item, defaults)
    assert decision.refusal == ""
    made = patched(item, decision)
    said = item["metadata"]["annotations"] | item["metadata"].get("labels", {})
    for share in shares(made).values():
        units = share.request_millipercent // 1000 * share.devices
        if "gpu-fraction" in said:
            assert units == round(float(said["gpu-fraction"]) * 100) * int(said.get("gpu-fraction-num-devices", 1))
        if "gpu-memory" in said:
            assert share.memory_limit_bytes == int(said["gpu-memory"]) * 2**20
        if "sharedgpu/gpu_request" in said:
            assert units == round(float(said["sharedgpu/gpu_request"]) * 100)
        if "sharedgpu/gpu_mem" in said:
            assert share.memory_limit_bytes == int(said["sharedgpu/gpu_mem"])
    for container, before in zip(made["spec"]["containers"], item["spec"]["containers"], strict=True):
        limits = before.get("resources", {}).get("limits", {})
        share = shares(made).get(container["name"])
        if share is not None and "nvidia.com/gpumem" in limits:
            assert share.memory_limit_bytes == limits["nvidia.com/gpumem"] * 2**20
            assert share.devices == limits.get("nvidia.com/gpu", 1)
            assert share.request_millipercent == 1000 * limits.get(
                "nvidia.com/gpucores", defaults.percent_of_memory(limits["nvidia.com/gpumem"] * 2**20)
            )


@given(item=st.one_of(right_pods(), foreign_pods()), defaults=DEFAULTS)
@settings(max_examples=600, deadline=None)
def test_a_pod_is_refused_in_one_line_or_taken_by_the_device_plugin(item: Object, defaults: Defaults) -> None:
    decision = decided(item, defaults)
    if decision.refusal:
        assert decision.patch == ()
        assert "\n" not in decision.refusal
        return
    made = patched(item, decision)
    if not decision.patch:
        assert made == item
        return
    found = shares(made)
    assert found
    for container in made["spec"]["containers"]:
        names = container["resources"]["limits"].keys() if container["name"] in found else ()
        assert [name for name in names if name.startswith("nvidia.com/")] == []
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["metadata"]["annotations"].items() >= item["metadata"]["annotations"].items()
    assert made["metadata"].get("labels") == item["metadata"].get("labels")
    again = decided(made, defaults)
    assert (again.refusal, again.patch) == ("", ()), "the API server may call once more"


@given(item=st.one_of(right_pods(), foreign_pods()), defaults=DEFAULTS)
@settings(max_examples=200, deadline=None)
def test_nothing_but_shares_is_changed(item: Object, defaults: Defaults) -> None:
    made = patched(item, decided(item, defaults))
    for place in (item, made):
        place["spec"].pop("schedulerName")
        place["metadata"].pop("annotations")
        for container in place["spec"]["containers"]:
            for kind, resources in container.pop("resources", {}).items():
                kept = {key: value for key, value in resources.items() if not key.startswith(("nvidia.com/", RESOURCE))}
                container[kind] = kept or None
                if not kept:
                    del container[kind]
    assert made == item


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=10,
)
PLACES = st.sampled_from(
    [
        ("metadata",), ("spec",), ("metadata", "annotations"), ("metadata", "labels"), ("spec", "containers"),
        ("spec", "initContainers"), ("spec", "schedulerName"), ("spec", "containers", 0),
        ("spec", "containers", 0, "name"), ("spec", "containers", 0, "env"), ("spec", "containers", 0, "resources"),
        ("spec", "containers", 0, "resources", "limits"), ("spec", "containers", 0, "resources", "requests"),
        ("metadata", "annotations", "gpu-fraction"), ("metadata", "annotations", MARK),
        ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpumem"),
    ]
)  # fmt: skip


@given(item=foreign_pods(), place=PLACES, value=JSON)
@settings(max_examples=400, deadline=None)
def test_a_malformed_pod_is_a_decision_in_one_line(item: Object, place: tuple[Any, ...], value: object) -> None:
    inside: Any = item
    for key in place[:-1]:
        inside = inside.setdefault(key, {}) if isinstance(inside, dict) else inside[key]
    inside[place[-1]] = value
    assert "\n" not in decide(request(item), Defaults()).refusal


@pytest.mark.parametrize("value", [[], "text", 7, {"metadata": []}, {"metadata": {"annotations": {"a": 1}}}])
def test_what_is_no_pod_asks_for_nothing(value: Any) -> None:
    item = value if isinstance(value, dict) else {"spec": value}
    assert decide(request(item), Defaults()) == Decision()


def test_a_hostile_depth_is_not_walked() -> None:
    deep: object = "x"
    for _ in range(900):
        deep = {"y": deep}
    item = pod({}, annotations={"gpu-fraction": "0.5"})
    item["spec"]["volumes"] = [deep]
    assert shares(patched_shallow(item))


def patched_shallow(item: Object) -> Object:
    """Return the pod after its patch, without the part that is too deep to be copied."""
    decision = decide(request(item), Defaults())
    assert decision.patch
    del item["spec"]["volumes"]
    return patched(item, decision)
