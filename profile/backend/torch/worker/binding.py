"""Calls bound by argument name, because private signatures change between versions."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from errors import Failure

_REQUIRED = object()


class Callee:
    """A torch operator or Python function whose signature is looked up, not assumed.

    Attributes: schema, the signature as text; names, the argument names in order.
    """

    def __init__(self, fn: Callable):
        # A function made an operator by torch.library hides its overload behind one of these two attributes.
        overload = getattr(fn, "default", None) or getattr(fn, "_opoverload", None) or fn
        schema = getattr(overload, "_schema", None)
        # The overload itself: a packet of several would choose between them anew in every call.
        self._fn = fn if schema is None else overload
        if schema is not None:
            self.schema = str(schema)
            self._defaults = {a.name: _schema_default(a) for a in schema.arguments}
            self._returns = [r.name for r in schema.returns]
        else:
            signature = inspect.signature(fn)
            self.schema = f"{fn.__module__}.{fn.__qualname__}{signature}"
            self._defaults = {n: _default(p) for n, p in signature.parameters.items()}
            self._returns = []
        self.names = list(self._defaults)

    def bind(self, values: dict[str, Any]) -> Callable[[], Any]:
        """A call without arguments: of values, those that the signature knows; the others keep their
        defaults.

        Failure(unsupported) names an argument that has neither a value nor a default.
        """
        missing = [n for n, d in self._defaults.items() if d is _REQUIRED and n not in values]
        if missing:
            raise Failure("unsupported", f"{self.schema} wants {', '.join(missing)}, unknown to this worker")
        chosen = {
            n: values[n] if n in values else d for n, d in self._defaults.items() if n in values or d is None
        }
        return functools.partial(self._fn, **chosen)

    def results(self, raw: Any) -> dict[str, Any]:
        """A call's results by the names its schema gives them; empty where it gives none."""
        many = raw if isinstance(raw, (tuple, list)) else (raw,)
        return {name: value for name, value in zip(self._returns, many) if name}


def _schema_default(argument: Any) -> Any:
    if argument.has_default_value():
        return argument.default_value
    return None if type(argument.type).__name__ == "OptionalType" else _REQUIRED


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is not inspect.Parameter.empty:
        return parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return ()
    note = str(parameter.annotation)
    return None if "Optional" in note or "None" in note else _REQUIRED
