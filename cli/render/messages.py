"""Converts the agent's messages for display: enum values to words, whole messages to JSON. Pure.

The command uses the messages of proto/v1.proto as its values: it draws and prints the agent's answer unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from sharepod.proto import v1_pb2 as pb


def word(message: Message, field: str) -> str:
    """Return the enum value in `field` as a word: "waiting" for SHARE_STATE_WAITING."""
    return _enum_word(message.DESCRIPTOR.fields_by_name[field].enum_type, getattr(message, field))


def class_of(word: str | None) -> pb.ShareClass.ValueType:
    """Return the class of shares with that name; None: unspecified."""
    from sharepod.proto import v1_pb2 as pb

    return pb.SHARE_CLASS_UNSPECIFIED if word is None else pb.ShareClass.Value(f"SHARE_CLASS_{word.upper()}")


def label(share: pb.Share) -> str:
    """Return the name that the user gave the share, else its id."""
    return share.name or share.id


def is_simulated(node: pb.GetNodeResponse) -> bool:
    """Tell whether the node's devices are simulated."""
    return "simulated" in node.features


def plain(message: Message) -> dict[str, Any]:
    """Return the message for JSON: all fields by their names, numbers as numbers, enum values as words."""
    return {field.name: _field_for_json(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _field_for_json(field: Any, value: Any) -> Any:
    """Return the value of a message's field for JSON."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [one if kind is None else plain(one) for one in value]
    if kind is not None:
        return plain(value)
    return value if field.enum_type is None else _enum_word(field.enum_type, value)


def _enum_word(enum: Any, number: int) -> str:
    """Return a value of an enum as a word, without the prefix that all values of the enum have."""
    value = enum.values_by_number.get(number)  # a newer agent may send unknown values
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return value.name.removeprefix(prefix).lower() if value else f"unknown ({number})"
