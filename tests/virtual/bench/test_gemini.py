"""Test that the model of Gemini's policy reproduces the published figures."""

import pytest

from bench.bars.gemini import gemini


@pytest.mark.parametrize(
    ("figure", "known", "tolerance"),
    [("stall, ms", 4600, 0.07), ("limit, ms", 5000, 0.07), ("trainer keeps", 0.38 / 0.77, 0.05)],
)
def test_the_model_reproduces_what_is_known(figure: str, known: float, tolerance: float) -> None:
    assert gemini(figure) == pytest.approx(known, rel=tolerance)
