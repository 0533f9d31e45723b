"""Test what every process relies on at its edges: protection, credentials, bounds, words of the log, files awaited."""

import asyncio
import json
import logging
import os
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from server_certificates import Certificates

from sharepod.process import files, log, manual
from sharepod.process import run as run_module
from sharepod.process.credentials import Credentials, read_token
from sharepod.process.errors import SettingsError
from sharepod.process.kinds import address, text, whole
from sharepod.process.metrics import HistogramRow, Row, Table
from sharepod.process.protection import protected


@pytest.mark.parametrize(
    ("place", "given", "asked"),
    [
        ("127.0.0.1:1", "", ""),
        ("127.0.0.1:1", "cert key", ""),
        ("127.0.0.1:1", "cert", "--private-key"),  # all or none
        ("10.0.0.1:1", "", "--cert, --private-key"),
        ("10.0.0.1:1", "key", "--cert"),
        ("10.0.0.1:1", "cert key", ""),
        ("off", "", ""),
        ("off", "key", "--cert"),
    ],
)
def test_an_address_that_others_reach_needs_all_that_protects_it(place: str, given: str, asked: str) -> None:
    settings = SimpleNamespace(listen=place, cert="cert" in given, private_key="key" in given)
    complete = protected({"listen": ("cert", "private_key")})
    if not asked:
        assert complete(settings, "--{}".format, {}) is settings
        return
    message = f"--listen is '{place}', which others reach, and would not be protected: give {asked}, or an address"
    with pytest.raises(SettingsError, match=message):
        complete(settings, "--{}".format, {})


def test_a_token_is_a_word_of_at_least_sixteen_of_all_printable_characters(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" !" + b"x" * 14 + b"~\n")
    assert read_token(str(file)) == b"!" + b"x" * 14 + b"~"
    for wrong in (b"x" * 15, b"x" * 16 + b"\x7f", b"\x1f" + b"x" * 16 + b"\x1f.", b"x" * 8 + b" " + b"x" * 8):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match="at least 16"):
            read_token(str(file))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Let both make a handshake in memory. Raises SSLError if one of them does not accept the other."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there, server_hostname="localhost"), server.wrap_bio(there, back, server_side=True)
    done = set()
    for _ in range(9):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(end)
    assert done == set(ends)


def test_a_client_shows_a_certificate_at_each_handshake_and_the_renewed_files_count(tmp_path: Path) -> None:
    made = Certificates(tmp_path, "localhost")
    credentials = Credentials(str(made.certificate), str(made.key), client_ca=str(made.client_ca))
    server, context = credentials.following(), credentials.context
    assert server is not None
    assert context is not None
    assert (context.num_tickets, bool(context.options & ssl.OP_NO_TICKET)) == (0, True), "no session is resumed"
    for _ in range(2):
        shake_hands(server, made.trust(issuer=made.clients))
        for stranger in (None, made.authority):
            with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
                shake_hands(server, made.trust(issuer=stranger))
        made.renew()
    assert credentials.accept(""), "no token is asked for"
    made.client_ca.write_text("nothing")
    with pytest.raises(SettingsError, match=f"no certificate with its key, or {made.client_ca} is no authority"):
        Credentials(str(made.certificate), str(made.key), client_ca=str(made.client_ca))


def test_the_least_and_the_most_are_allowed_and_yaml_s_words_for_true_are_no_text() -> None:
    assert [whole(3, 5).read(value) for value in (3, "5")] == [3, 5]
    port = address("give HOST:PORT", least_port=1)
    assert [port.read(f"h:{number}") for number in (1, 65535)] == ["h:1", "h:65535"]
    assert address("give HOST:PORT").read("h:0") == "h:0"
    wrong: list[tuple[Any, object]] = [(port, "h:0"), (whole(3, 5), 2), (whole(3, 5), 6), (text(), True)]
    for kind, value in wrong:
        with pytest.raises(ValueError, match="give "):
            kind.read(value)


def test_a_word_of_the_log_is_quoted_if_it_could_be_taken_for_something_else(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("sharepod")
    before = logger.handlers[:], logger.level, logger.propagate
    try:
        log.set_up("text", "info")
        log.set_up("text", "info")  # it takes the place of the first
        words = {"a": "plain", "b": "", "c": "x y", "d": "x=y", "e": 'x"y', "f": "x\ty"}
        logging.getLogger("sharepod.some").info("said", extra=words)
        logging.getLogger("sharepod.some").debug("not said")
        [line] = capsys.readouterr().err.splitlines()
        assert line.partition("INFO    ")[2] == r'said a=plain b="" c="x y" d="x=y" e="x\"y" f="x\ty"'
        log.set_up("json", "debug")
        logging.getLogger("sharepod.some").debug("said")
        assert json.loads(capsys.readouterr().err)["level"] == "debug"
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
    assert not caplog.records, "nothing is said twice"


def test_what_has_ended_keeps_its_counters_and_no_gauge() -> None:
    rows: tuple[Row[int] | HistogramRow[int], ...] = (
        Row("a_total", "A.", float),
        Row("b", "B.", float),
        HistogramRow("c", "C.", (), lambda n: ((n,), 0.5)),
    )
    table: Table[int, int] = Table("Some", {"x": ()}, rows, lambda _: [(("lives",), 1)], lambda _: [(("ended",), 2)])
    shown = {family.row.name: [key for key, _ in family.series] for family in table.families(0)}
    assert shown == {"a_total": [("lives",), ("ended",)], "b": [("lives",)], "c": [("lives",), ("ended",)]}


def test_a_page_that_has_lost_the_second_marker_is_refused() -> None:
    begin = "<!-- settings: generated by python -m sharepod.process.manual sharepod.agent.settings -->"
    with pytest.raises(ValueError, match="has lost its markers"):
        manual.with_settings(f"before {begin} after", "sharepod.agent.settings")


def test_a_file_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, (tmp_path / "x").exists())))
    files.replace(tmp_path / "x", "four")
    assert synced == [(4, False)]


async def test_a_file_is_awaited_until_it_is_there_or_the_process_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(asyncio.Event):
        looks = 0

        async def wait(self) -> Any:
            self.looks += 1
            return await super().wait()

    monkeypatch.setattr(run_module, "_LOOK_S", 0.001)
    monkeypatch.setattr(run_module, "_TELL_LOOKS", 2)
    told: list[int] = []
    path, stopping = tmp_path / "socket", Stopping()

    def tell() -> None:
        told.append(stopping.looks)
        if len(told) == 3:
            path.touch()

    assert await run_module.awaited(str(path), stopping, tell)
    assert told == [0, 2, 4]
    stopping.set()
    assert await run_module.awaited(str(path), stopping, tell), "it is there"
    path.unlink()
    assert not await run_module.awaited(str(path), stopping, tell)
    assert told == [0, 2, 4]
