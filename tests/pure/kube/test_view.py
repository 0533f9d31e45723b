"""Test the view of a watch: each object is told once, and told again after it was gone."""

from typing import Any

from sharepod.kube.informer import _View


class Names:
    """A reader of objects that are nothing but their names."""

    def key(self, item: str) -> str:
        return item

    def read(self, item: dict[str, Any]) -> str:
        return str(item["metadata"]["name"])


def line(name: str, version: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def test_what_is_gone_is_told_once_and_when_it_is_back_too() -> None:
    view: _View[str] = _View(Names())  # type: ignore[arg-type]
    assert view.changed("ADDED", line("a", "5")) == [("set", "a")]
    assert view.changed("DELETED", line("a", "7")) == [("gone", "a")]
    assert view.changed("DELETED", line("a", "8")) == []
    assert view.changed("BOOKMARK", line("b")) == []
    assert view.replaced([]) == []
    assert view.changed("ADDED", line("a", "9")) == [("set", "a")]
    assert view.version == "9"
