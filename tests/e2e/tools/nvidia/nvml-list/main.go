// Command nvml-list prints, in JSON, what NVIDIA's Go bindings see of the machine: its GPUs and their MIG instances.
//
// It ends with a panic, which names the line, where NVML does not answer as a real driver does.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type instance struct {
	UUID      string `json:"uuid"`
	Profile   uint32 `json:"profile"`
	Start     uint32 `json:"start"`
	Size      uint32 `json:"size"`
	SMs       uint32 `json:"sms"`
	MemoryMiB uint64 `json:"memory_mib"`
}

type gpu struct {
	UUID        string     `json:"uuid"`
	Name        string     `json:"name"`
	Minor       int        `json:"minor"`
	PciID       uint32     `json:"pci_id"`
	Brand       int        `json:"brand"`
	Memory      uint64     `json:"memory_bytes"`
	PowerLimit  uint32     `json:"power_limit_mw"`
	ActiveLinks int        `json:"active_links"`
	Instances   []instance `json:"instances"`
}

// got returns the answer of a call, or ends the program with the name of what failed.
func got[T any](value T, result nvml.Return) T {
	if result != nvml.SUCCESS {
		panic(fmt.Sprintf("NVML: %v", nvml.ErrorString(result)))
	}
	return value
}

func instanceOf(mig nvml.Device) instance {
	parent := got(mig.GetDeviceHandleFromMigDeviceHandle())
	gi := got(parent.GetGpuInstanceById(got(mig.GetGpuInstanceId())))
	ci := got(gi.GetComputeInstanceById(got(mig.GetComputeInstanceId())))
	place, attributes := got(gi.GetInfo()), got(mig.GetAttributes())
	if size := got(ci.GetInfo()).Placement.Size; size != attributes.ComputeInstanceSliceCount {
		panic(fmt.Sprintf("%d slices of a compute instance, and %d as an attribute", size, attributes.ComputeInstanceSliceCount))
	}
	return instance{
		got(mig.GetUUID()), place.ProfileId, place.Placement.Start, place.Placement.Size,
		attributes.MultiprocessorCount, attributes.MemorySizeMB,
	}
}

func gpuOf(device nvml.Device) gpu {
	found := gpu{
		UUID: got(device.GetUUID()), Name: got(device.GetName()), Minor: got(device.GetMinorNumber()),
		PciID: got(device.GetPciInfo()).PciDeviceId, Brand: int(got(device.GetBrand())), Memory: got(device.GetMemoryInfo()).Total,
		PowerLimit: got(device.GetPowerManagementDefaultLimit()),
	}
	for link := 0; link < nvml.NVLINK_MAX_LINKS; link++ {
		if state, result := device.GetNvLinkState(link); result == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			found.ActiveLinks++
		}
	}
	if current, _, result := device.GetMigMode(); result != nvml.SUCCESS || current != nvml.DEVICE_MIG_ENABLE {
		return found
	}
	for n := 0; n < got(device.GetMaxMigDeviceCount()); n++ {
		mig, result := device.GetMigDeviceHandleByIndex(n)
		if result == nvml.ERROR_NOT_FOUND {
			continue
		}
		found.Instances = append(found.Instances, instanceOf(got(mig, result)))
	}
	return found
}

func main() {
	if result := nvml.Init(); result != nvml.SUCCESS {
		fmt.Fprintln(os.Stderr, nvml.ErrorString(result))
		os.Exit(1)
	}
	defer nvml.Shutdown()
	gpus := []gpu{}
	for n := 0; n < got(nvml.DeviceGetCount()); n++ {
		gpus = append(gpus, gpuOf(got(nvml.DeviceGetHandleByIndex(n))))
	}
	said := json.NewEncoder(os.Stdout)
	if err := said.Encode(map[string]any{"driver": got(nvml.SystemGetDriverVersion()), "gpus": gpus}); err != nil {
		panic(err)
	}
}
