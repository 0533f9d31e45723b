"""Test variables and parameters as PTX declares them, and calls that need no current context."""

from simgpu_fixtures import NewGpu

PTX = b"""
.version 8.0
.target sm_90
.address_size 64
// a table of constants, and two variables in one declaration
.const .align 4 .b8 table[1024];
.visible .global .align 8 .u64 counter = 5;
.global .v4 .f32 corners[3], other;
.visible .entry first(
  .param .u8 first_param_0,
  .param .u64 .ptr .global .align 1 first_param_1,
  .param .align 16 .b8 first_param_2[20],
  .param .f16 first_param_3
) { ld.global.u32 %r1, [counter]; cvta.const.u64 %rd1, table; ret; }
.entry none() { ret; }
"""
PRELUDE = f"""
start()
module, first, none = c_void_p(), c_void_p(), c_void_p()
before = used()
ok(cuda.cuModuleLoadData(byref(module), {PTX!r}))
ok(cuda.cuModuleGetFunction(byref(first), module, b"first"))
ok(cuda.cuModuleGetFunction(byref(none), module, b"none"))
def variable(name):
    address, size = c_uint64(), c_size_t()
    return cuda.cuModuleGetGlobal_v2(byref(address), byref(size), module, name), size.value, address.value
def parameter(kernel, index):
    offset, size = c_size_t(), c_size_t()
    return cuda.cuFuncGetParamInfo(kernel, c_size_t(index), byref(offset), byref(size)), offset.value, size.value
"""


def test_the_variables_of_ptx_have_their_sizes_and_a_place_each(new_gpu: NewGpu) -> None:
    lines = new_gpu().play(
        PRELUDE
        + """
names = (b"table", b"counter", b"corners", b"other")
print([variable(name)[:2] for name in names], [variable(name)[0] for name in (b"count", b"first", b"nowhere")])
places = sorted((variable(name)[2], variable(name)[1]) for name in names)
print(all(start and start + size <= following for (start, size), (following, _) in zip(places, places[1:])))
for start, size in places:
    ok(cuda.cuMemsetD8_v2(c_uint64(start), 7, c_size_t(size)))
taken = used() - before
ok(cuda.cuModuleUnload(module))
print(taken > 0, used() - before)
"""
    )
    assert lines == ["[(0, 1024), (0, 8), (0, 48), (0, 16)] [500, 500, 500]", "True", "True 0"]


def test_the_parameters_of_ptx_lie_one_after_the_other_as_they_are_aligned(new_gpu: NewGpu) -> None:
    lines = new_gpu().play(
        PRELUDE
        + """
print([parameter(first, n) for n in range(4)])
print([parameter(first, 4)[0], parameter(none, 0)[0], cuda.cuFuncGetParamInfo(module, 0, None, None)])
size = c_size_t()
print(cuda.cuKernelGetParamInfo(first, c_size_t(2), byref(size), None), size.value)
"""
    )
    assert lines == ["[(0, 0, 1), (0, 8, 8), (0, 16, 20), (0, 36, 2)]", "[1, 1, 400]", "0 16"]


def test_events_and_modules_end_where_no_context_is_current(new_gpu: NewGpu) -> None:
    lines = new_gpu().play(
        PRELUDE
        + """
stream, early, late, milliseconds = new_stream(), new_event(), new_event(), c_float()
ok(cuda.cuEventRecord(early, stream))
ok(launch(first, stream))
ok(cuda.cuEventRecord(late, stream))
context = c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
ok(cuda.cuCtxSetCurrent(None))
print(cuda.cuEventSynchronize(late), cuda.cuEventQuery(early))
print(cuda.cuEventElapsedTime(byref(milliseconds), early, late), milliseconds.value > 0)
print(cuda.cuEventDestroy_v2(early), cuda.cuEventQuery(early), cuda.cuEventDestroy_v2(early))
print(cuda.cuModuleUnload(module), cuda.cuModuleUnload(module))
print(cuda.cuEventCreate(byref(early), 0), cuda.cuEventRecord(late, stream))
"""
    )
    assert lines == ["0 0", "0 True", "0 400 400", "0 400", "201 201"]


def test_no_bytes_in_the_order_of_a_stream_are_no_memory_and_no_error(new_gpu: NewGpu) -> None:
    lines = new_gpu().play("""
        start()
        stream, address, other = new_stream(), c_uint64(5), c_uint64(5)
        print(cuda.cuMemAllocAsync(byref(address), c_size_t(0), stream), address.value, used())
        print(cuda.cuMemFreeAsync(address, stream), cuda.cuMemAlloc_v2(byref(other), c_size_t(0)))
        """)
    assert lines == ["0 0 0", "0 1"]
