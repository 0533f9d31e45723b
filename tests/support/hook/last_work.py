"""Holds programs that leave work in their streams that nothing marks: beside a capture, or in a destroyed stream."""

CAPTURES = 30
# The stream joins a capture while its work is not marked; marking the work fails until the capture ends.
BESIDE_CAPTURES = f"""
module, captured, stream, graph = start(), new_stream(), new_stream(), c_void_p()
fork, join = new_event(), new_event()
function = kernel(module, "beside_1ms")
for _ in range(20):  # it is known from here on
    ok(launch(function, stream))
    ok(cuda.cuStreamSynchronize(stream))
for _ in range({CAPTURES}):
    ok(cuda.cuStreamBeginCapture_v2(captured, 2))
    ok(cuda.cuEventRecord(fork, captured))
    for _ in range(4):
        ok(launch(function, stream))
    ok(cuda.cuStreamWaitEvent(stream, fork, 0))
    time.sleep(0.02)
    ok(cuda.cuEventRecord(join, stream))
    ok(cuda.cuStreamWaitEvent(captured, join, 0))
    ok(cuda.cuStreamEndCapture(captured, byref(graph)))
    ok(cuda.cuStreamSynchronize(stream))
"""

DESTROYED = 20
# Each stream is destroyed with work in it that was too short to be marked at its launch. The first stream stays.
IN_DESTROYED_STREAMS = f"""
function, first = kernel(start(), "gone_300us"), new_stream()
for _ in range(20):
    ok(launch(function, first))
    ok(cuda.cuStreamSynchronize(first))
for _ in range({DESTROYED}):
    streams = [new_stream() for _ in range(3)]
    for stream in streams:
        ok(launch(function, stream))
    for stream in (streams[1], streams[2], streams[0]):
        ok(cuda.cuStreamDestroy_v2(stream))
    ok(cuda.cuCtxSynchronize())
"""
