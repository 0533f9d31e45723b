"""The cluster that the e2e tests share: one of our own, or with ``make e2e KUBECONFIG=…`` one that is there already."""

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

# Set by `make e2e KUBECONFIG=…` only: the variable of that name in a developer's shell may lead to a cluster in use.
OTHER_CLUSTER = os.environ.get("SHAREPOD_E2E_KUBECONFIG")


FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound what a test does itself: servers to be compiled take their time, and all else in a fixture has a bound.

    What needs a second node comes last: two more nodes would take from the others' tests what these measure.
    """
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.timeout(600, func_only=True))
    items.sort(key=lambda item: "two_node_cluster" in getattr(item, "fixturenames", ()))


def pytest_configure(config: pytest.Config) -> None:
    """End before the first test when a release is asked for that is not tested."""
    config.addinivalue_line("markers", "releases: shows what differs between releases of Kubernetes")
    try:
        chosen()
    except BuildError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    """Tell which versions run."""
    return f"cluster: {OTHER_CLUSTER or versions()}"


def built(pytestconfig: pytest.Config, *modules: Module) -> list[Path]:
    """Return the folders of modules' programs, or skip where no cluster can be. The build says how far it is.

    What cannot be built ends the run: every other test would say the same.
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
    """Return the cluster's programs, of the release that was asked for."""
    return Programs(*built(pytestconfig, chosen(), RUNTIME))


@pytest.fixture(scope="session")
def kueue_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of Kueue's manager and manifests."""
    return built(pytestconfig, KUEUE)[0]


@pytest.fixture(scope="session")
def nvidia_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of NVIDIA's programs and of ours with NVIDIA's bindings."""
    return built(pytestconfig, NVIDIA)[0]


@pytest.fixture(scope="session")
def own_cluster(programs: Programs) -> Iterator[Cluster]:
    """Start the shared cluster of our own; a test that asks for it does what no other cluster lets it do."""
    with Cluster(programs) as cluster:
        namespaces = cluster.node.namespaces()
        yield cluster
    assert leftovers(cluster.node, namespaces) == []


@pytest.fixture(scope="session")
def two_node_cluster(programs: Programs) -> Iterator[Cluster]:
    """Start a cluster of two nodes beside the other one, for the tests that need a second."""
    with Cluster(programs, nodes=2) as cluster:
        namespaces = [member.node.namespaces() for member in cluster.members]
        yield cluster
    for member, own in zip(cluster.members, namespaces, strict=True):
        assert leftovers(member.node, own) == []


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    """Return the cluster as any user of it sees it: ours, or the one that was given."""
    if OTHER_CLUSTER:
        return Kubectl.of(Path(OTHER_CLUSTER))
    cluster: Cluster = request.getfixturevalue("own_cluster")
    return cluster.kubectl


@pytest.fixture(scope="session")
def sharepod(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[SharePod]:
    """Return the installation that the tests share, made as a user makes it."""
    with sharepod_on(kubectl, None if OTHER_CLUSTER else request.getfixturevalue("own_cluster")) as installed:
        yield installed


@pytest.fixture(scope="session")
def two_nodes(two_node_cluster: Cluster) -> SharePodNodes:
    """Return the installation on both nodes, with two devices each, that the tests of a second node share."""
    return sharepod_nodes(two_node_cluster)
