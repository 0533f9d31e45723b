"""Test that any foreign pod gets a one-line refusal or becomes a pod that the device plugin takes, and only once."""

import copy
from typing import Any

import pytest
from foreign_pods import H200, RIGHT, Object, decided, patched, pod, request, shares
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.webhook import hami, kai, kubeshare
from sharepod.webhook.ask import Defaults
from sharepod.webhook.review import Decision
from sharepod.webhook.translate import MARK, RESOURCE, decide

DEFAULTS = st.builds(
    Defaults,
    memory_only_percent=st.integers(1, 100),
    device_memory_bytes=st.sampled_from([None, 2**20, 24 * 2**30, H200]),
)
OURS = ("sharepod.io/class", "sharepod.io/a.same-device", "sharepod.io/paused", "sharepod.io/limit")
KEYS = (*kai.KEYS, *kubeshare.KEYS, *OURS)
VALUES = st.one_of(
    st.integers(0, 110).map(lambda percent: f"{percent / 100:.2f}"),
    st.integers(0, 18).map(str),
    st.sampled_from(["1048575", "1073741824", "1125899906842625", "4k", "1e3", "50%", "١", "abz", "true", "batch"]),
    st.text(max_size=8),
)


@st.composite
def foreign_pods(draw: st.DrawFn) -> Object:
    """Return a valid pod of one system, with up to three random settings added."""
    item = copy.deepcopy(draw(st.sampled_from([item for item, _ in RIGHT])))
    item["spec"]["schedulerName"] = draw(st.sampled_from(["default-scheduler", "kai-scheduler"]))
    item["metadata"].setdefault("annotations", {})
    words = st.tuples(st.sampled_from(["annotations", "labels"]), st.sampled_from(KEYS), VALUES)
    for place, key, text in draw(st.lists(words, max_size=2)):
        item["metadata"].setdefault(place, {})[key] = text
    for key, text in draw(st.lists(st.tuples(st.sampled_from(hami.RESOURCES), VALUES), max_size=1)):
        resources = item["spec"]["containers"][-1].setdefault("resources", {"limits": {}, "requests": {}})
        resources["limits"][key] = resources["requests"][key] = text
    return item


@given(item=foreign_pods(), defaults=DEFAULTS)
@settings(max_examples=600, deadline=None)
def test_a_pod_is_refused_or_the_plugin_takes_it_and_only_shares_change(item: Object, defaults: Defaults) -> None:
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
    again = decided(made, defaults)
    assert (again.refusal, again.patch) == ("", ()), "the API server may call once more"
    # The translation must change nothing else.
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
    decision = decide(request(item), Defaults())
    del item["spec"]["volumes"]  # these are nested too deep to be copied here
    assert shares(patched(item, decision))
