"""Fields of plan documents. PlanError names one that is missing or wrong."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from .plan import PlanError


def an_object(of: Mapping[str, Any], key: str, at: str) -> Mapping[str, Any]:
    """An object. at: what the names of the fields of `of` begin with."""
    value = of.get(key)
    if not isinstance(value, dict):
        raise PlanError(f"{at}{key}: {'missing' if value is None else 'want an object'}")
    return value


def objects(of: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A list of some objects."""
    value = of.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(x, dict) for x in value):
        raise PlanError(f"{key}: want a list of objects")
    return value


def whole(of: Any, key: str, at: str, least: int, absent: Any = None) -> int:
    """A whole number; `absent` stands for one that is not there."""
    value = of.get(key, absent) if isinstance(of, dict) else None
    if type(value) is not int or value < least:
        raise PlanError(f"{at}{key}: {value!r}: want a whole number from {least} on")
    return value


def flag(of: Mapping[str, Any], key: str, at: str) -> bool:
    """Yes or no; no where it is not there."""
    value = of.get(key, False)
    if not isinstance(value, bool):
        raise PlanError(f"{at}{key}: {value!r}: want true or false")
    return value


def numbers(of: Mapping[str, Any], key: str, at: str, least: int) -> tuple[int, ...]:
    """A list of some whole numbers."""
    value = of.get(key)
    if not isinstance(value, list) or not value or any(type(n) is not int or n < least for n in value):
        raise PlanError(f"{at}{key}: want a list of whole numbers from {least} on")
    return tuple(value)


def nodes(of: Mapping[str, Any], key: str, at: str) -> Iterator[int]:
    """Ranks of devices that are alike, which are listed by node."""
    value = of.get(key)
    if not isinstance(value, list):
        raise PlanError(f"{at}{key}: want a list of nodes")
    for i, node in enumerate(value):
        yield from numbers({f"{key}[{i}]": node}, f"{key}[{i}]", at, 0)
