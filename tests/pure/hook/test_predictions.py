"""Test that the length of a unit of work is learned by its key, and learned anew when the unit has changed."""

import ctypes
import random
from pathlib import Path

import pytest
from hooklab import HOOK, load_c


class Unit(ctypes.Structure):
    """The first fields of struct sp_work_profile."""

    _fields_ = (("key", ctypes.c_uint64), ("predicted_ns", ctypes.c_uint32))


class Predictions:
    """The functions of predict.c alone."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.sp_profile_find.restype = ctypes.POINTER(Unit)

    def of(self, key: int) -> int:
        return int(self._library.sp_profile_find(ctypes.c_uint64(key))[0].predicted_ns)

    def learn(self, key: int, version: int, ns: int, *, exact: bool = True) -> int:
        unit = self._library.sp_profile_find(ctypes.c_uint64(key))
        launches, flag = ctypes.c_uint32(1), ctypes.c_bool(exact)
        self._library.sp_profile_learn(unit, ctypes.c_uint8(version), launches, ctypes.c_uint64(ns), flag)
        return self.of(key)

    def changed(self, key: int, *, replaced: bool) -> None:
        self._library.sp_profile_changed(ctypes.c_uint64(key), ctypes.c_bool(replaced))


@pytest.fixture
def predictions(tmp_path: Path) -> Predictions:
    return Predictions(load_c(tmp_path / "predict.so", HOOK / "meter" / "predict.c"))


def test_units_that_belong_in_one_row_keep_a_prediction_each(predictions: Predictions) -> None:
    dice = random.Random(1)
    truth = {dice.getrandbits(64) | 1: 1000 + number for number in range(1000)}  # about 30 share a row with another
    for key, ns in truth.items():
        predictions.learn(key, 0, ns)
    assert {key: predictions.of(key) for key in truth} == truth


def test_what_was_in_flight_when_a_unit_changed_is_not_learned_as_the_new_one(predictions: Predictions) -> None:
    predictions.learn(5, 0, 1000)
    predictions.changed(5, replaced=False)
    assert [predictions.learn(5, version, ns) for version, ns in ((0, 900), (2, 8000))] == [1000, 8000]
    predictions.learn(7, 0, 1000)
    predictions.changed(7, replaced=True)
    assert [predictions.learn(7, version, ns) for version, ns in ((0, 900), (2, 500))] == [0, 500]


def test_an_upper_bound_never_raises_what_is_known_and_the_first_exact_length_replaces_it(
    predictions: Predictions,
) -> None:
    assert [predictions.learn(5, 0, ns, exact=exact) for ns, exact in ((1000, True), (1800, False))] == [1000, 1000]
    predictions.changed(5, replaced=False)
    assert [predictions.learn(5, 2, ns, exact=False) for ns in (3000, 5000)] == [3000, 3000]
    assert [predictions.learn(5, 2, ns) for ns in (2000, 1800)] == [2000, 1900]


def test_a_newcomer_to_a_full_table_learns_anew(predictions: Predictions) -> None:
    dice = random.Random(2)
    for _ in range(80_000):
        predictions.learn(dice.getrandbits(64) | 1, 0, 1000)
    for number in range(200):
        key = dice.getrandbits(64) | 1
        assert predictions.of(key) == 0
        assert predictions.learn(key, 0, 2000 + number) == predictions.of(key) == 2000 + number


def test_wherever_a_unit_stands_in_the_table_its_change_is_known(predictions: Predictions) -> None:
    dice = random.Random(1)
    keys = [dice.getrandbits(64) | 1 for _ in range(1000)]
    for key in keys:
        predictions.learn(key, 0, 1000)
    for key in keys:
        predictions.changed(key, replaced=True)
    assert [predictions.learn(key, 0, 900) for key in keys] == [0] * len(keys)


def test_what_is_known_exactly_stays_so_when_it_takes_less(predictions: Predictions) -> None:
    assert predictions.learn(5, 0, 1000) == 1000
    assert predictions.learn(5, 0, 800, exact=False) == 900
    assert predictions.learn(5, 0, 1100) == 925  # it is still exact: otherwise 1100 would be learned anew
