"""Test that our definitions of kubelet's protocols match kubelet's on the wire: packages, services, numbers, types."""

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from sharepod.proto import deviceplugin_pb2, podresources_pb2

# For each message, the types of the fields 1, 2, 3 and so on. "+" is repeated, "map" is from string to string.
DEVICE_PLUGIN = {
    "RegisterRequest": ["string", "string", "string", "DevicePluginOptions"],
    "DevicePluginOptions": ["bool", "bool"],
    "ListAndWatchResponse": ["Device+"],
    "Device": ["string", "string", "TopologyInfo"],
    "TopologyInfo": ["NUMANode+"],
    "NUMANode": ["int64"],
    "PreferredAllocationRequest": ["ContainerPreferredAllocationRequest+"],
    "ContainerPreferredAllocationRequest": ["string+", "string+", "int32"],
    "PreferredAllocationResponse": ["ContainerPreferredAllocationResponse+"],
    "ContainerPreferredAllocationResponse": ["string+"],
    "AllocateRequest": ["ContainerAllocateRequest+"],
    "ContainerAllocateRequest": ["string+"],
    "AllocateResponse": ["ContainerAllocateResponse+"],
    "ContainerAllocateResponse": ["map", "Mount+", "DeviceSpec+", "map", "CDIDevice+"],
    "Mount": ["string", "string", "bool"],
    "DeviceSpec": ["string", "string", "string"],
    "CDIDevice": ["string"],
    "PreStartContainerRequest": ["string+"],
    "PreStartContainerResponse": [],
    "Empty": [],
}
POD_RESOURCES = {
    "ListPodResourcesRequest": [],
    "AllocatableResourcesRequest": [],
    "AllocatableResourcesResponse": ["ContainerDevices+"],
    "ListPodResourcesResponse": ["PodResources+"],
    "PodResources": ["string", "string", "ContainerResources+"],
    "ContainerResources": ["string", "ContainerDevices+"],
    "ContainerDevices": ["string", "string+"],
}
CALLS = {
    "v1beta1.Registration/Register": ("RegisterRequest", "Empty"),
    "v1beta1.DevicePlugin/GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
    "v1beta1.DevicePlugin/ListAndWatch": ("Empty", "ListAndWatchResponse stream"),
    "v1beta1.DevicePlugin/GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse"),
    "v1beta1.DevicePlugin/Allocate": ("AllocateRequest", "AllocateResponse"),
    "v1beta1.DevicePlugin/PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse"),
    "v1.PodResourcesLister/List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
    "v1.PodResourcesLister/GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse"),
}


def kind(field: FieldDescriptor) -> str:
    message = field.message_type
    if message and message.GetOptions().map_entry:
        assert [kind(part) for part in message.fields] == ["string", "string"]
        return "map"
    name = message.name if message else FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{name}+" if field.is_repeated else name


@pytest.mark.parametrize(
    ("file", "messages"), [(deviceplugin_pb2.DESCRIPTOR, DEVICE_PLUGIN), (podresources_pb2.DESCRIPTOR, POD_RESOURCES)]
)
def test_fields_have_kubelets_numbers_and_types(file: FileDescriptor, messages: dict[str, list[str]]) -> None:
    found = {
        name: {field.number: kind(field) for field in message.fields}
        for name, message in file.message_types_by_name.items()
    }
    assert found == {name: dict(enumerate(kinds, 1)) for name, kinds in messages.items()}


def test_calls_have_kubelets_names() -> None:
    files = (deviceplugin_pb2.DESCRIPTOR, podresources_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    found = {
        f"{service.full_name}/{call.name}": (
            call.input_type.name,
            call.output_type.name + " stream" * call.server_streaming,
        )
        for service in services
        for call in service.methods
    }
    assert found == CALLS
