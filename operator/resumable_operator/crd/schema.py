"""From a pydantic model to the structural schema that Kubernetes wants.

Kubernetes takes a dialect of JSON schema: no references, one type in each place, null as a mark, and what
comes from logic (``anyOf``) beside the type, never instead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = ("type", "format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
_OPEN = "x-kubernetes-preserve-unknown-fields"
_UNION = "x-kubernetes-int-or-string"


def of_spec(model: type[BaseModel]) -> Schema:
    """Schema with defaults and limits: what it refuses never reaches the operator."""
    root = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(root.get("$defs", {}), strict=True).convert(root)


def of_status(model: type[BaseModel]) -> Schema:
    """Schema of types only.

    A newer operator may write more fields, other words and other limits than this one knows, so none is
    refused; a hand that writes a text for a number is.
    """
    root = model.model_json_schema(by_alias=True, mode="serialization")
    return _Converter(root.get("$defs", {}), strict=False).convert(root)


class _Converter:
    """``strict``: keep limits, defaults, enumerations and required fields."""

    def __init__(self, definitions: Mapping[str, Schema], strict: bool) -> None:
        self._definitions = definitions
        self._strict = strict

    def convert(self, node: Schema) -> Schema:
        node = self._resolved(node)
        alternatives = [self._resolved(item) for item in node.get("anyOf", ())]
        given = [item for item in alternatives if item.get("type") != "null"]
        if len(given) == 1:  # optional: null is pruned by the API server, as nothing
            node = {**given[0], **_without(node, "anyOf", "default")}
        body = self._union(given) if len(given) > 1 else self._plain(node)
        head: Schema = {"description": " ".join(node["description"].split())} if "description" in node else {}
        if self._strict and node.get("default") is not None:
            default = self._default(node)
            head = {**_telling(head, default), "default": default}
        return {**head, **body}

    def _resolved(self, node: Schema) -> Schema:
        if "$ref" not in node:
            return node
        target = self._definitions[node["$ref"].rpartition("/")[2]]
        return {**target, **_without(node, "$ref")}

    def _plain(self, node: Schema) -> Schema:
        body = {key: node[key] for key in (_KEPT if self._strict else ("type", "format")) if key in node}
        if "exclusiveMinimum" in node and self._strict:
            body |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
        if node.get("type") == "integer":
            body["format"] = "int64"
        if self._strict and "enum" in node:
            body["enum"] = node["enum"]
        if node.get("type") == "array":
            body["items"] = self.convert(node["items"])
        if node.get("type") == "object":
            body |= self._object(node)
        return body

    def _object(self, node: Schema) -> Schema:
        properties = {name: self.convert(item) for name, item in node.get("properties", {}).items()}
        values = node.get("additionalProperties")
        if isinstance(values, dict) and values:
            return {"additionalProperties": self.convert(values)}
        if not properties:
            return {_OPEN: True}
        body: Schema = {"properties": properties}
        if not self._strict:
            return {**body, _OPEN: True}
        if node.get("required"):
            body["required"] = node["required"]
        return body

    def _union(self, alternatives: list[Schema]) -> Schema:
        kinds = {item.get("type") for item in alternatives}
        if kinds == {"integer", "string"}:
            return {_UNION: True}
        if kinds == {"object", "string"}:
            words = [item["const"] for item in alternatives if "const" in item]
            (shape,) = (item for item in alternatives if item.get("type") == "object")
            return _word_or_object(words, self._object(shape)["properties"])
        raise ValueError(f"no structural schema for a union of {sorted(map(str, kinds))}")

    def _default(self, node: Schema) -> Any:
        default = _numbers(node["default"])
        return {} if isinstance(default, dict) and self._follows(node, default) else default

    def _follows(self, node: Schema, default: dict[str, Any]) -> bool:
        """The defaults of its fields say the same already."""
        fields = {name: self._resolved(item) for name, item in node.get("properties", {}).items()}
        return all(
            name in fields and "default" in fields[name] and _numbers(fields[name]["default"]) == value
            for name, value in default.items()
        )


def _word_or_object(words: list[str], properties: Schema) -> Schema:
    """One of some words, or an object with at least one of the properties and no other.

    A structural schema has one type in each place, except for integers and strings. What has none must keep
    unknown fields and is out of reach for CEL. But each limit below binds only values of its own type, and
    the logic counts the fields, so that together they leave exactly the two: for numbers, lists and booleans
    nothing fits, and an object with a name that is not known has one field too many.
    """
    return {
        _OPEN: True,
        "pattern": f"^({'|'.join(words)})$",
        "minimum": 1,
        "maximum": 0,
        "minItems": 1,
        "maxItems": 0,
        "not": {"enum": [True, False]},
        "anyOf": [{"required": names, "maxProperties": len(names)} for names in _subsets(list(properties))],
        "properties": properties,
    }


def _subsets(names: list[str]) -> list[list[str]]:
    """All but the empty one."""
    chosen = [[]] if not names else [[*head, *tail] for tail in _all(names[1:]) for head in ([], [names[0]])]
    return [subset for subset in chosen if subset]


def _all(names: list[str]) -> list[list[str]]:
    return [[], *_subsets(names)]


def _telling(head: Schema, default: Any) -> Schema:
    """With the default in words: `kubectl explain` shows descriptions, and no defaults."""
    text = head.get("description", "")
    if isinstance(default, dict):
        words = ", ".join(f"{name} {value}" for name, value in default.items())
    else:
        words = "" if isinstance(default, list) else _word(default)
    if not text or not words or "Default:" in text:
        return head
    return {**head, "description": f"{text} Default: {words}."}


def _word(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _without(node: Schema, *keys: str) -> Schema:
    return {key: value for key, value in node.items() if key not in keys}


def _numbers(value: Any) -> Any:
    """Without nulls; 30.0 as 30."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items() if item is not None}
    return int(value) if isinstance(value, float) and value.is_integer() else value
