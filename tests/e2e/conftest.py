"""Gives the e2e tests a shared cluster: one of our own, or with ``make e2e KUBECONFIG=…`` an existing cluster."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_tools import KUEUE, NVIDIA, RUNTIME, BuildError, Module, build
from cluster import Cluster
from kubectl import Kubectl
from leftovers import leftovers
from node import why_not
from programs import Programs, chosen, versions
from sharepod_cluster import SharePod, sharepod_on
from sharepod_nodes import SharePodNodes, sharepod_nodes

# Only `make e2e KUBECONFIG=…` sets this. KUBECONFIG in a developer's shell may lead to a cluster in use.
OTHER_CLUSTER = os.environ.get("SHAREPOD_E2E_KUBECONFIG")


FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound the time of each test without its fixtures, as these may compile servers and bound everything else.

    Tests that need a second node come last: two more nodes would disturb what the other tests measure.
    """
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.timeout(600, func_only=True))
    items.sort(key=lambda item: "two_node_cluster" in getattr(item, "fixturenames", ()))


def pytest_configure(config: pytest.Config) -> None:
    """End the run before the first test if the wanted release of Kubernetes is not one that is tested."""
    config.addinivalue_line("markers", "releases: shows what differs between releases of Kubernetes")
    try:
        chosen()
    except BuildError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    """Return a line that tells which versions run."""
    return f"cluster: {OTHER_CLUSTER or versions()}"


def built(pytestconfig: pytest.Config, *modules: Module) -> list[Path]:
    """Return the folders with the programs of modules, or skip where no cluster can run. The build prints its progress.

    A build that fails ends the run, as every other test would fail with the same error.
    """
    if OTHER_CLUSTER:
        pytest.skip("another cluster was given: this test needs one of its own")
    if reason := why_not():
        pytest.skip(reason)
    try:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            return build(*modules)
    except BuildError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Programs:
    """Return the cluster's programs, of the wanted release."""
    return Programs(*built(pytestconfig, chosen(), RUNTIME))


@pytest.fixture(scope="session")
def kueue_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of Kueue's manager and manifests."""
    return built(pytestconfig, KUEUE)[0]


@pytest.fixture(scope="session")
def nvidia_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of NVIDIA's programs, and of our programs that use NVIDIA's bindings."""
    return built(pytestconfig, NVIDIA)[0]


@pytest.fixture(scope="session")
def own_cluster(programs: Programs) -> Iterator[Cluster]:
    """Start our own shared cluster, for tests that do what no other cluster lets them do."""
    with Cluster(programs) as cluster:
        namespaces = cluster.node.namespaces()
        yield cluster
    assert leftovers(cluster.node, namespaces) == []


@pytest.fixture(scope="session")
def two_node_cluster(programs: Programs) -> Iterator[Cluster]:
    """Start a cluster of two nodes beside the shared one, for the tests that need a second node."""
    with Cluster(programs, nodes=2) as cluster:
        namespaces = [member.node.namespaces() for member in cluster.members]
        yield cluster
    for member, own in zip(cluster.members, namespaces, strict=True):
        assert leftovers(member.node, own) == []


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    """Return kubectl as a user of the cluster has it: for our own cluster, or for the given one."""
    if OTHER_CLUSTER:
        return Kubectl.of(Path(OTHER_CLUSTER))
    cluster: Cluster = request.getfixturevalue("own_cluster")
    return cluster.kubectl


@pytest.fixture(scope="session")
def sharepod(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[SharePod]:
    """Return the installation of SharePod that the tests share, made as a user makes it."""
    with sharepod_on(kubectl, None if OTHER_CLUSTER else request.getfixturevalue("own_cluster")) as installed:
        yield installed


@pytest.fixture(scope="session")
def two_nodes(two_node_cluster: Cluster) -> SharePodNodes:
    """Return the shared installation for tests that need a second node: two nodes with two devices each."""
    return sharepod_nodes(two_node_cluster)
