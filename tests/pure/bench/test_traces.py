"""Test that the kept traces say where they come from and are as long as their sources say."""

import pytest

from bench.bars import replay


def kernel_ns(trace: str) -> tuple[list[str], list[int]]:
    lines = (replay.FOLDER / f"{trace}.trace").read_text(encoding="utf-8").splitlines()
    return lines, [int(line.split()[2]) for line in lines if line.startswith("kernel ")]


def test_every_trace_says_where_it_comes_from() -> None:
    names = [path.stem for path in replay.FOLDER.glob("*.trace")]
    assert set(names) == {replay.TRAINING, replay.SERVER, replay.LOOP}
    assert {replay.load(name).origin for name in names} <= {"recorded", "synthesised"}


def test_a_synthesised_training_step_is_as_long_as_was_published() -> None:
    lines, kernels = kernel_ns(replay.TRAINING)
    iteration = lines[lines.index("    begin iteration") : lines.index("    end iteration")]
    counts, total_ns = [1], 0
    for verb, *words in map(str.split, iteration):
        if verb == "repeat":
            counts.append(counts[-1] * int(words[0]))
        elif verb == "again":
            counts.pop()
        elif verb == "launch":
            total_ns += kernels[int(words[1])] * int(words[2]) * counts[-1]
    assert total_ns == pytest.approx(135e6, rel=0.001)


def test_a_synthesised_token_is_as_long_as_was_published() -> None:
    lines, kernels = kernel_ns(replay.SERVER)
    [nodes] = [line.split()[2:] for line in lines if line.startswith("graph 0 ")]
    assert len(nodes) == 322
    assert sum(kernels[int(node)] for node in nodes) == pytest.approx(5.1e6, rel=0.01)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('"sharepod_trace": 2', "version 1"),
        ('"sharepod_trace": 1, "name": "t", "origin": "guessed"', "synthesised or recorded"),
        ('"sharepod_trace": 1, "name": "t", "origin": "synthesised"', "says its sources"),
        ('"sharepod_trace": 1, "name": "t", "origin": "recorded", "device": "H100"', "says its driver, command, date"),
    ],
)
def test_a_header_that_hides_where_its_trace_comes_from_is_refused(header: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replay.parse(f"{{{header}}}\nkernel 0 5000 gemm 8x8x1\n")
