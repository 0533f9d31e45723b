"""Test the annotations of a pod: what they mean, and the error if they mean nothing."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.deviceplugin.core.terms import (
    CLASSES,
    ELSEWHERE,
    KEYS,
    MEMORY_LEAST_BYTES,
    PodTerms,
    TermsError,
    read_terms,
)

GPU = "GPU-53474750-0000-0000-8000-00000000000{}"


def terms(units: int = 30, container: str = "train", **annotations: str) -> PodTerms:
    """Return the terms for annotations given by key; `__` stands for a dot, `_` for a dash."""
    named = {"sharepod.io/" + key.replace("__", ".").replace("_", "-"): value for key, value in annotations.items()}
    return read_terms(named, container, units)


def refusal(units: int = 30, **annotations: str) -> str:
    with pytest.raises(TermsError) as caught:
        terms(units, **annotations)
    return str(caught.value)


def test_a_pod_without_annotations_gets_what_it_requests_and_may_use_the_device() -> None:
    assert terms(30) == PodTerms(
        devices=1, request_millipercent=30_000, limit_millipercent=100_000, memory_limit_bytes=None,
        share_class="standard", chosen=(), same_device=False, paused=False,
    )  # fmt: skip


def test_all_annotations_together() -> None:
    chosen = (GPU.format(1), GPU.format(2))
    given = {"limit": "40", "memory": "20Gi", "devices": "2", "paused": "true", "class": "batch"}
    assert terms(60, device=",".join(chosen), **given) == PodTerms(
        devices=2, request_millipercent=30_000, limit_millipercent=40_000, memory_limit_bytes=10 * 2**30,
        share_class="batch", chosen=chosen, same_device=False, paused=True,
    )  # fmt: skip
    assert terms(same_device="true").same_device
    assert not terms(same_device="false", paused="false").same_device


def test_a_containers_own_annotation_wins_over_the_pods() -> None:
    annotations = {"sharepod.io/limit": "60", "sharepod.io/train.limit": "40", "sharepod.io/other.limit": "nonsense"}
    assert read_terms(annotations, "train", 30).limit_millipercent == 40_000
    assert read_terms(annotations, "side", 30).limit_millipercent == 60_000
    with pytest.raises(TermsError):
        read_terms(annotations, "other", 30)
    with pytest.raises(TermsError, match=r"is for no container of the pod: did you mean side\?"):
        read_terms(
            annotations | {"sharepod.io/sidecar.limit": "60"}, "train", 30, containers=("train", "side", "other")
        )


def test_the_nodes_limit_holds_for_those_who_give_none_and_never_goes_below_a_request() -> None:
    assert read_terms({}, "c", 30, limit_percent=50).limit_millipercent == 50_000
    assert read_terms({}, "c", 70, limit_percent=50).limit_millipercent == 70_000
    assert read_terms({"sharepod.io/limit": "90"}, "c", 30, limit_percent=50).limit_millipercent == 90_000


@pytest.mark.parametrize(
    ("units", "annotations", "text"),
    [
        # units that do not divide among devices; the error names numbers that do
        (150, {}, "ask for 100 or 200, or set sharepod.io/devices to 2 for 75 % of each"),
        (1700, {}, "more than 16 whole devices"),
        (0, {}, "ask for 1 or more"),
        (100, {"devices": "3"}, "ask for 99 or 102"),
        (1, {"devices": "2"}, "ask for 2"),
        (300, {"devices": "2"}, "ask for at most 200, or set sharepod.io/devices to at least 3"),
        (30, {"devices": "0"}, "from 1 to 16"),
        (30, {"devices": "٢"}, "from 1 to 16"),
        # a limit that is no whole percentage, or below the request
        (30, {"limit": "60%"}, "write 60"),
        (30, {"limit": "0"}, "1 to 100"),
        (30, {"limit": ""}, "1 to 100"),
        (30, {"limit": "٦٠"}, "1 to 100"),
        (30, {"limit": "29"}, "below the request 30 %"),
        # memory that no device can give
        (100, {"memory": "10", "devices": "1"}, "10 bytes, outside 1Mi–1Pi: give a size such as 10Gi"),
        (100, {"memory": "-1Gi", "devices": "1"}, "outside 1Mi–1Pi"),
        (100, {"memory": "9e99", "devices": "1"}, "outside 1Mi–1Pi"),
        (100, {"memory": "2047Ki", "devices": "2"}, "on each of 2 devices, outside 1Mi–1Pi"),
        (100, {"memory": "10GB", "devices": "1"}, "no quantity: give a size such as 10Gi"),
        (100, {"memory": "0.5", "devices": "1"}, "no whole number of bytes"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_those_that_can(
    units: int, annotations: dict[str, str], text: str
) -> None:
    assert text in refusal(units, **annotations)


@settings(deadline=None)
@given(units=st.integers(1, 1700), devices=st.none() | st.integers(1, 16))
def test_units_spread_evenly_or_the_remedy_works(units: int, devices: int | None) -> None:
    annotations = {} if devices is None else {"sharepod.io/devices": str(devices)}
    try:
        found = read_terms(annotations, "c", units)
    except TermsError as error:
        for number in re.findall(r"ask for (?:at most )?(\d+)(?: or (\d+))?", str(error)):
            for text in filter(None, number):
                assert int(text) > 1600 or read_terms(annotations, "c", int(text))
        for number in re.findall(r"devices to (\d+) for", str(error)):
            assert read_terms({"sharepod.io/devices": number}, "c", units)
        return
    assert found.devices * found.request_millipercent == units * 1000
    assert 1_000 <= found.request_millipercent <= found.limit_millipercent == 100_000
    assert devices in (None, found.devices)
    assert devices is not None or found.devices == 1 or found.request_millipercent == 100_000


def test_memory_is_what_the_container_gets_on_all_its_devices_together() -> None:
    assert terms(100, memory="10Gi").memory_limit_bytes == 10 * 2**30
    assert terms(100, memory="1.5Gi").memory_limit_bytes == 3 * 2**29
    assert terms(99, devices="3", memory="10Gi").memory_limit_bytes == 10 * 2**30 // 3
    assert terms(100, devices="2", memory="2Mi").memory_limit_bytes == MEMORY_LEAST_BYTES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sharepod.io/limits", "did you mean limit?"),
        ("sharepod.io/sameDevice", "did you mean same-device?"),
        ("sharepod.io/train.clas", "did you mean class?"),
        ("sharepod.io/train.gang", "known are limit, memory, class, devices, same-device, paused"),
        ("sharepod.io/gang-sise", "did you mean gang-size?"),
        *((f"sharepod.io/{word}", "known are limit") for word in ("note", "yields")),
        ("sharepod.io/", "known are"),
        ("SharePod.io/limit", "write sharepod.io/ in lower case"),
        ("sharepod.io/gpu", "put it under limits"),
        ("sharepod.io/.limit", "put a container's name before the dot"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(name: str, text: str) -> None:
    with pytest.raises(TermsError) as caught:
        read_terms({name: "1"}, "train", 30)
    assert text in str(caught.value)


def test_other_annotations_and_those_of_other_parts_are_let_be() -> None:
    others = {"example.org/limit": "no", "notsharepod.io/limit": "no", "sharepod.io": "no"}
    others |= {f"sharepod.io/{key}": "anything" for key in ELSEWHERE}
    assert replace(read_terms(others, "c", 30), gang="") == read_terms({}, "c", 30)


def test_the_schedulers_choice_names_as_many_devices_as_are_asked_for() -> None:
    assert terms(device=GPU.format(1)).chosen == (GPU.format(1),)
    assert terms(device="MIG-1b2c3d4e-0000-0000-8000-000000000000").chosen
    for value in ("", "0", "gpu-1", GPU.format(1) + ",", GPU.format(1) + ", " + GPU.format(2), "GPU-" + "a" * 99):
        assert "no UUID of a device" in refusal(device=value)
    assert "names 2 devices and 1 are asked for" in refusal(device=f"{GPU.format(1)},{GPU.format(2)}")
    assert "names a device twice" in refusal(200, device=f"{GPU.format(1)},{GPU.format(1)}")


def test_classes_and_switches_are_words() -> None:
    for name in CLASSES:
        assert terms(**{"class": name}).share_class == name
    assert "did you mean latency?" in refusal(**{"class": "latancy"})
    assert "known are latency, standard, batch" in refusal(**{"class": "gold"})
    for value in ("yes", "True", "1", ""):
        assert 'give "true" or "false"' in refusal(paused=value)
        assert 'give "true" or "false"' in refusal(same_device=value)
    assert "same-device is for shares of one device" in refusal(200, same_device="true")


@settings(deadline=None)
@given(
    annotations=st.dictionaries(
        st.sampled_from([f"sharepod.io/{key}" for key in (*KEYS, *(f"c.{key}" for key in KEYS))])
        | st.text(max_size=300).map("sharepod.io/".__add__),
        st.text(max_size=3000) | st.integers().map(str),
        max_size=4,
    ),
    units=st.integers(-5, 5000),
)
def test_whatever_a_tenant_writes_gives_terms_or_one_printable_line(annotations: dict[str, str], units: int) -> None:
    try:
        found = read_terms(annotations, "c", units)
    except TermsError as error:
        text = str(error)
        assert text.isprintable()
        assert all(letter.isascii() or letter in "…–" for letter in text)
        assert 20 < len(text) < 700
        assert ": " in text
    else:
        assert 1_000 <= found.request_millipercent <= found.limit_millipercent <= 100_000
        assert found.chosen == () or len(found.chosen) == found.devices
        assert found.memory_limit_bytes is None or found.memory_limit_bytes >= MEMORY_LEAST_BYTES


def test_a_pod_that_yields_by_limit_is_limited_to_its_request_whatever_its_own_limit_is() -> None:
    for more in ({}, {"limit": "80"}, {"train__limit": "80"}):
        held = terms(30, **{"yield": "limit"}, **more)
        assert (held.yields, held.request_millipercent, held.limit_now_millipercent) == ("limit", 30_000, 30_000)
        assert held.limit_millipercent == (80_000 if more else 100_000), "for when it goes on"
    assert terms(60, devices="2", **{"yield": "limit"}).limit_now_millipercent == 30_000
    assert "below the request" in refusal(30, limit="20", **{"yield": "limit"})


def test_a_pod_that_yields_by_pausing_keeps_its_own_terms_for_when_it_goes_on() -> None:
    held = terms(30, limit="80", **{"yield": "pause"})
    assert (held.yields, held.limit_now_millipercent, held.paused) == ("pause", 80_000, False)
    assert terms(30, paused="true", **{"yield": "pause"}).paused
    assert terms(30).yields == ""


def test_the_members_of_a_gang_run_in_step_unless_they_may_come_and_go() -> None:
    size = {"gang_size": "4"}
    assert terms(30, gang="train-7", **size).gang == "train-7"
    assert terms(30, gang="train-7", gang_min="4", **size).gang == "train-7"
    assert terms(30, gang="train-7", gang_min="2", **size).gang == "", "elastic"
    assert terms(30, gang="../../x", **size).gang == "", "the scheduler tells"
    assert terms(30).gang == ""


def test_to_yield_is_for_the_whole_pod_and_one_of_two_words() -> None:
    for value in ("", "true", "Pause", "limit "):
        assert "neither limit nor pause: the scheduler writes it, leave it out" in refusal(**{"yield": value})
    told = "annotation 'sharepod.io/train.yield' is for one container: write sharepod.io/yield, for the whole pod"
    assert refusal(train__yield="pause") == told
