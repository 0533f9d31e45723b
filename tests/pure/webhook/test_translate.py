"""Test what pods of other systems become: their units, their defaults, and the one-line refusals."""

import pytest
from foreign_pods import (
    GIB,
    H200,
    RIGHT,
    Object,
    decided,
    hami,
    kai,
    kubeshare,
    patched,
    pod,
    shares,
    translated,
    with_spec,
)

from sharepod.webhook.ask import Defaults
from sharepod.webhook.translate import MARK

KNOWN_DEVICE = Defaults(device_memory_bytes=H200)


def terms(item: Object, defaults: Defaults | None = None) -> tuple[float, int, float, int | None, str]:
    """Return percent, devices, limit, bytes and class of a pod's only share after translation, each per device."""
    [found] = shares(translated(item, defaults)).values()
    return (
        found.request_millipercent / 1000,
        found.devices,
        found.limit_millipercent / 1000,
        found.memory_limit_bytes,
        found.share_class,
    )


@pytest.mark.parametrize(("item", "expected"), RIGHT)
def test_each_word_has_its_unit(item: Object, expected: tuple[float, int, float, int | None, str]) -> None:
    assert terms(item) == expected


def test_memory_alone_is_given_compute_in_proportion_where_the_devices_are_known() -> None:
    assert terms(kai(gpu_memory=str(141 * 1024 // 2)), KNOWN_DEVICE)[0] == 50
    assert terms(hami({"gpumem": 10}), KNOWN_DEVICE)[0] == 1
    assert terms(hami({"gpumem": 200 * 1024}), KNOWN_DEVICE)[0] == 100
    assert terms(hami({"gpumem-percentage": 50, "gpucores": 20}), KNOWN_DEVICE)[:4] == (20, 1, 100, H200 // 2)
    assert terms(kai(gpu_memory="4096"), Defaults(memory_only_percent=25))[0] == 25


def test_compute_that_is_forced_is_a_limit() -> None:
    for value, limit in (("force", 30), ("default", 100), ("disable", 100)):
        variable = {"env": [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": value}]}
        assert terms(hami({"gpumem": 4096, "gpucores": 30}, a=variable))[2] == limit


def test_cores_without_memory_are_whole_devices_and_the_user_is_told_in_words_that_are_shown_whole() -> None:
    item = hami({"gpu": 1, "gpucores": 30})
    assert terms(item)[0] == 100
    item["spec"]["containers"][0]["name"] = "x" * 55
    [warning] = decided(item).warnings
    assert warning == f"{'x' * 55} gets whole devices: it asks for no nvidia.com/gpumem"
    assert len(f"sharepod: {warning}") <= 120, "more would be cut off"


def test_the_container_that_is_named_holds_the_share() -> None:
    named = kai({}, {}, gpu_fraction="0.5", gpu_fraction_container_name="b")
    assert list(shares(translated(named))) == ["b"]
    named["spec"]["initContainers"] = [{"name": "first"}]
    named["metadata"]["annotations"]["gpu-fraction-container-name"] = "first"
    assert list(shares(translated(named))) == ["first"]
    assert list(shares(translated(kai({}, {}, gpu_fraction="0.5")))) == ["a"]


def test_each_container_of_hamis_has_its_own_share() -> None:
    init = [{"name": "warm", "resources": {"limits": {"nvidia.com/gpumem": "1000"}}}]
    item = hami({"gpumem": 4096, "gpucores": 30}, {}, {"gpu": 2, "gpumem": 100, "gpucores": 5}, init=init)
    found = shares(translated(item))
    assert {name: share.request_millipercent for name, share in found.items()} == {
        "a": 30_000, "c": 5_000, "warm": 10_000,
    }  # fmt: skip
    assert found["c"].devices == 2


def test_what_others_read_stays_and_what_nobody_offers_goes() -> None:
    item = hami({"gpu": 1, "gpumem": 4096, "gpucores": 30, "priority": 1}, {"gpu": 1}, scheduler="hami-scheduler")
    item["metadata"] |= {"labels": {"app": "x"}, "annotations": {"example.com/x": "y"}}
    item["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2"
    made = translated(item)
    resources = {"cpu": "1", "sharepod.io/gpu": "30"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": resources | {"cpu": "2"}, "requests": resources}
    assert made["spec"]["containers"][1] == item["spec"]["containers"][1], "a whole device is NVIDIA's plugin's"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["metadata"]["labels"] == {"app": "x"}
    assert made["metadata"]["annotations"] == {
        "example.com/x": "y",
        "sharepod.io/a.memory": "4096Mi",
        "sharepod.io/a.class": "batch",
        MARK: "HAMi a:nvidia.com/gpu=1 a:nvidia.com/gpumem=4096 a:nvidia.com/gpucores=30 a:nvidia.com/priority=1",
    }
    labelled = kubeshare(gpu_request="0.3", gpu_limit="0.6")
    assert translated(labelled)["metadata"]["labels"] == labelled["metadata"]["labels"], "selectors may need them"


@pytest.mark.parametrize(
    ("scheduler", "becomes"),
    [("kai-scheduler", "ours"), ("runai-scheduler", "ours"), ("kubeshare-scheduler", "ours"), ("volcano", "volcano")],
)
def test_a_scheduler_that_would_wait_for_ever_is_replaced(scheduler: str, becomes: str) -> None:
    item = pod({}, annotations={"gpu-fraction": "0.5"}, scheduler=scheduler)
    assert translated(item, Defaults(scheduler_name="ours"))["spec"]["schedulerName"] == becomes


def test_what_ours_says_that_theirs_cannot_stands() -> None:
    item = hami({"gpumem": 4096, "priority": 1})
    item["metadata"]["annotations"] = {"sharepod.io/class": "latency", "sharepod.io/paused": "true"}
    found = shares(translated(item))["a"]
    assert (found.share_class, found.paused) == ("latency", True)
    item["metadata"]["annotations"] = {"sharepod.io/a.class": "standard", "sharepod.io/gang": "g"}
    assert shares(translated(item))["a"].share_class == "standard"


@pytest.mark.parametrize(
    "item",
    [
        pod({}),
        pod({"nvidia.com/gpu": 1}),
        pod({"sharepod.io/gpu": 30}, annotations={"sharepod.io/limit": "60"}),
        pod({"nvidia.com/mig-1g.10gb": 1}),
        pod({}, labels={"sharedgpu/priority": "0"}),
        kubeshare(gpu_request="0", gpu_limit="0.0"),
    ],
)
def test_other_pods_are_left_alone(item: Object) -> None:
    assert decided(item).patch == ()
    assert translated(item) == item


def test_a_container_that_another_webhook_adds_later_is_translated_too() -> None:
    made = translated(hami({"gpumem": 4096, "gpucores": 30}))
    made["spec"]["containers"].append({"name": "late", "resources": {"limits": {"nvidia.com/gpumem": "10"}}})
    found = shares(translated(made))
    assert {name: share.memory_limit_bytes for name, share in found.items()} == {"a": 4 * GIB, "late": 10 * 2**20}


OURS = "keep one of the two"
SHARED = {"sharedgpu/gpu_request": "0.3", "sharedgpu/gpu_limit": "0.6"}
APART = "differs between its requests and its limits: give it under limits alone"
FORCE = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


def asking(limits: dict[str, str], requests: dict[str, str]) -> Object:
    """Return a pod with requests that differ from its limits."""
    return pod({}, a={"resources": {"limits": limits, "requests": requests}})


def setting(variable: str, value: str) -> Object:
    """Return a pod of KAI's with a variable in its container."""
    return pod({}, annotations={"gpu-fraction": "0.5"}, a={"env": [{"name": variable, "value": value}]})


REFUSED: list[tuple[Object, str]] = [
    # impossible numbers
    (kai(gpu_fraction="0.125"), "annotation gpu-fraction is '0.125', finer than 1 %: give 0.12 or 0.13"),
    (kai(gpu_fraction="0.001"), "annotation gpu-fraction is '0.001', finer than 1 %: give 0.01 or more"),
    (kai(gpu_fraction="1"), "annotation gpu-fraction is '1': give a number from 0.01 to 0.99; a whole device is "),
    (kai(gpu_fraction="0"), "annotation gpu-fraction is '0': give a number from 0.01 to 0.99"),
    (kai(gpu_fraction="5e-1"), "annotation gpu-fraction is '5e-1': give a decimal number such as 0.5"),
    (kai(gpu_fraction="٠.٥"), "annotation gpu-fraction is '\\u0660.\\u0665': give a decimal number"),
    (kai(gpu_fraction=""), "annotation gpu-fraction is '': give a decimal number"),
    (kai(gpu_memory="4Gi"), "annotation gpu-memory is '4Gi': give a whole number from 1 to"),
    (kai(gpu_memory="0"), "annotation gpu-memory is '0': give a whole number from 1 to"),
    (kai(gpu_fraction="0.5", gpu_fraction_num_devices="17"), "gpu-fraction-num-devices is '17': give a whole number"),
    (kai(gpu_fraction="0.5", gpu_sm_percentage="101"), "annotation gpu-sm-percentage is '101': give a whole number"),
    (hami({"gpumem": "1.5"}), "nvidia.com/gpumem of container a is '1.5': give a whole number, at most"),
    (hami({"gpumem": "lots"}), "nvidia.com/gpumem of container a is 'lots': give a whole number, at most"),
    (hami({"gpucores": 101}), "nvidia.com/gpucores of container a is '101': give a whole number, at most 100"),
    (hami({"gpumem-percentage": 101}), "nvidia.com/gpumem-percentage of container a is '101': give a whole number"),
    (hami({"priority": 2}), "nvidia.com/priority of container a is '2': give a whole number, at most 1"),
    (hami({"gpu": 17, "gpumem": 1}), "nvidia.com/gpu of container a is '17': give a whole number, at most 16"),
    (hami({"gpu": 0, "gpumem": 1}), "nvidia.com/gpu of container a is 0: give 1 to 16, or leave it out"),
    (kubeshare(gpu_request="0.333", gpu_limit="1.0"), "sharedgpu/gpu_request is '0.333', finer than 1 %: give 0.33"),
    (kubeshare(gpu_request="0.6", gpu_limit="0.5"), "sharedgpu/gpu_request 0.6 is above sharedgpu/gpu_limit 0.5"),
    (kubeshare(gpu_request="0.5", gpu_limit="1.5"), "sharedgpu/gpu_limit 1.5 is more than one device: give whole dev"),
    (kubeshare(gpu_request="0.5"), "sharedgpu/gpu_request is given without sharedgpu/gpu_limit: give that too"),
    (kubeshare(gpu_limit="0.5"), "neither sharedgpu/gpu_request nor sharedgpu/gpu_mem says how much is needed: give"),
    (kubeshare(gpu_request="0.5", gpu_limit="1", gpu_mem="10Gi"), "sharedgpu/gpu_mem is '10Gi': give a whole number"),
    (kubeshare(gpu_request="0.5", gpu_limit="1", gpu_mem="4096"), "sharedgpu/gpu_mem is 4096 bytes: give at least"),
    (kubeshare(gpu_request="2", gpu_limit="2", gpu_mem="4194304"), "sharedgpu/gpu_mem is given for whole devices"),
    # settings that contradict each other, or that no share can have
    (kai(gpu_fraction="0.5", gpu_memory="4096"), "annotations gpu-fraction and gpu-memory are both given: give one"),
    (kai(gpu_fraction_num_devices="2"), "annotation gpu-fraction-num-devices is given without gpu-fraction or gpu-m"),
    (kai(gpu_fraction="0.5", gpu_fraction_container_name="z"), "gpu-fraction-container-name is 'z', no container"),
    (kai(gpu_fraction="0.5", gpu_sm_percentage="40"), "annotation gpu-sm-percentage 40 is below gpu-fraction 0.50: ra"),
    (kai(gpu_fraction="0.5", gpu_sm_cores="40"), "annotation gpu-sm-cores counts cores of one kind of device"),
    (kai(**{"gpu_fraction": "0.5", "gpu_fraction.limit": "0.8"}), "annotation gpu-fraction.limit lends memory beyond"),
    (kai({"nvidia.com/gpu": 1}, gpu_fraction="0.5"), "asks for nvidia.com/gpu in a pod that asks KAI for a part of a"),
    (kai(**{"gpu_fraction": "0.5", "nvidia.com/container.a.gpu_memory.request": "8Gi"}), "KAI's own webhook has been"),
    (hami({"gpumem": 1, "gpumem-percentage": 10}), "asks for nvidia.com/gpumem and nvidia.com/gpumem-percentage: give"),
    (hami({"gpumem-percentage": 10, "gpucores": 20}), "container a asks for 10 % of the memory and 20 % of the co"),
    (hami({"gpumem": 1, "mig-1g.10gb": 1}), "container a asks for 'nvidia.com/mig-1g.10gb' beside a part of a device"),
    # two systems at once
    (hami({"gpumem": 1}, annotations={"gpu-fraction": "0.5"}), "the pod is written for KAI and for HAMi: write it"),
    (pod({}, annotations={"gpu-fraction": "0.5"}, labels={"sharedgpu/gpu_limit": "1", "sharedgpu/gpu_request": "1"}),
     "the pod is written for KAI and for KubeShare"),
    (kai({"sharepod.io/gpu": 30}, gpu_fraction="0.5"), "container a holds sharepod.io/gpu in a pod written for anot"),
    (kai({}, {"sharepod.io/gpu": 30}, gpu_fraction="0.5"), "container b holds sharepod.io/gpu in a pod written for"),
    (kai(**{"gpu_fraction": "0.5", "sharepod.io/limit": "60"}), "annotation 'sharepod.io/limit' stands beside what"),
    (kai(**{"gpu_fraction": "0.5", "sharepod.io/a.memory": "1Gi"}), OURS),
    (kai(**{"gpu_fraction": "0.5", MARK: "KAI", "sharepod.io/memory": "1Gi"}), OURS),
    (kai(**{"gpu_fraction": "0.5", MARK: "KAI", "sharepod.io/a.memory": "1Gi"}), OURS),
    (kai(**{"gpu_fraction": "0.5", MARK: "HAMi"}), "says that the pod came from another system than KAI: remove it"),
    # our annotations beside theirs, and wrong
    (kai(**{"gpu_fraction": "0.5", "sharepod.io/clas": "batch"}), "unknown annotation 'sharepod.io/clas'"),
    (kai(**{"gpu_fraction": "0.5", "sharepod.io/class": "fast"}), "container a: sharepod.io/class is 'fast'"),
    # what no share can have, from more than one setting together
    (pod({}, {}, labels=SHARED), "is for all 2 containers of the pod together, a share is one container's: give each"),
    (pod({}, labels=SHARED, annotations={"sharedgpu/gpu_limit": "0.7"}),
     "'sharedgpu/gpu_limit' is one thing as a label and another as an annotation: give one of them"),
    (pod({}, labels=SHARED | {"sharedgpu/gpu_model": "A100"}),
     "sharedgpu/gpu_model chooses a kind of device, which no share can: choose nodes by their labels"),
    (asking({"nvidia.com/gpumem": "1"}, {"nvidia.com/gpumem": "2"}), APART),
    (asking({}, {"nvidia.com/gpumem": "1"}), APART),
    (hami({"gpumem": 1}, a={"name": "x" * 60}), "is too long for an annotation: shorten it to 55"),
    (hami({"gpumem": 1}, a={"name": "A\nb"}), "spec.containers[0].name is no name of a container"),
    (pod({"nvidia.com/gpumem": "1", "sharepod.io/gpu": "10"}, annotations={MARK: "HAMi"}), OURS),
    (with_spec(kai(gpu_fraction="0.5"), containers=[]), "the pod has no container"),
    (setting("RUNAI_GPU_MEMORY_LIMIT", "0.9"), "variable RUNAI_GPU_MEMORY_LIMIT of container a lends"),
    (setting("NVIDIA_VISIBLE_DEVICES", "all"), "container a sets NVIDIA_VISIBLE_DEVICES: remove it"),
    (hami({"gpucores": 30}, a={"env": FORCE}), "and is held to 30 % of it, which leaves the rest to nobody"),
    (hami({"gpumem": 1}, annotations={"nvidia.com/use-gputype": "A100"}), "chooses devices by kind or UUID, which"),
    (hami({"gpumem": 1}, annotations={"nvidia.com/vgpu-mode": "mig"}), "is 'mig': only hami-core can be a share"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_in_one_line(item: Object, message: str) -> None:
    decision = decided(item)
    assert message in decision.refusal
    assert decision.patch == ()
    assert "\n" not in decision.refusal
    assert decision.refusal.isascii()
    assert len(decision.refusal) < 400


def test_what_has_no_meaning_here_is_told_and_does_no_harm() -> None:
    item = hami({"gpumem": 1}, annotations={"hami.io/gpu-scheduler-policy": "spread"})
    assert decided(item).warnings == ("annotation hami.io/gpu-scheduler-policy has no meaning for a share",)
    grouped = kubeshare(gpu_request="0.3", gpu_limit="0.6", pod_group_name="g", priority="50")
    assert len(decided(grouped).warnings) == 2
    assert shares(patched(grouped, decided(grouped)))
