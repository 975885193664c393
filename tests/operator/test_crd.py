"""The CustomResourceDefinition as it is made: committed, described, and fit for what is stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from resumable_operator.crd import __main__ as command
from resumable_operator.crd import as_yaml, crd
from resumable_operator.crd.rules import RULES
from resumable_operator.crd.schema import of_spec
from resumable_operator.model import JobStatus

Schema = dict[str, Any]
VERSION = crd()["spec"]["versions"][0]
ROOT: Schema = VERSION["schema"]["openAPIV3Schema"]


def _nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every place that holds a value, by its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from _nodes(item, f"{path}.{name}" if path else name)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _nodes(schema[key], f"{path}[]")


SPEC = dict(_nodes(ROOT["properties"]["spec"], "spec"))
STATUS = dict(_nodes(ROOT["properties"]["status"], "status"))


@pytest.mark.parametrize("path", command.FILES, ids=lambda path: path.parent.name)
def test_committed_definition_is_the_generated_one(path: Path) -> None:
    """deploy/ and the chart hold what the models say."""
    assert path.read_text() == as_yaml(), "run `python -m resumable_operator.crd`"


def test_command_writes_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes all files; --check fails as soon as one differs, and names it; --print only prints."""
    files = (tmp_path / "a.yaml", tmp_path / "b.yaml")
    monkeypatch.setattr(command, "FILES", files)
    run = CliRunner().invoke
    assert run(command.main, ["--check"]).exit_code == 1
    assert run(command.main, ["--print"]).stdout == as_yaml()
    assert run(command.main).exit_code == 0
    assert run(command.main, ["--check"]).exit_code == 0
    files[1].write_text(as_yaml() + "\n")
    result = run(command.main, ["--check"])
    assert (result.exit_code, str(files[1]) in result.stderr) == (1, True)


def test_command_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to write to, it says so and what to do."""
    monkeypatch.setattr(command, "FILES", (tmp_path / "none" / "crd.yaml",))
    result = CliRunner().invoke(command.main)
    assert (result.exit_code, "--print" in result.stderr) == (1, True)


def test_every_field_of_the_spec_is_described() -> None:
    """`kubectl explain` has a sentence for each field, at every depth."""
    bare = [path for path, node in SPEC.items() if not path.endswith("[]") and not node.get("description")]
    assert bare == []


def test_every_field_at_the_top_of_the_status_is_described() -> None:
    """`kubectl explain rtj.status` has a sentence for each."""
    assert [
        name for name, node in STATUS["status"]["properties"].items() if not node.get("description")
    ] == []


def test_descriptions_are_sentences() -> None:
    """They begin large (or with a name) and end with a full stop."""
    texts = {path: node["description"] for path, node in {**SPEC, **STATUS}.items() if "description" in node}
    assert [path for path, text in texts.items() if not text.endswith(".") or "  " in text] == []


def test_schema_is_structural() -> None:
    """One type in each place, or the mark of an exception; no reference, no union in place of a type."""
    for path, node in {**SPEC, **STATUS}.items():
        marked = node.get("x-kubernetes-int-or-string") or node.get("x-kubernetes-preserve-unknown-fields")
        assert node.get("type") or marked, path
        assert not {"$ref", "$defs", "oneOf", "title", "const"} & node.keys(), path
        assert "anyOf" not in node or path == "spec.checkpoint.interval", path
        assert not ({"properties", "additionalProperties"} <= node.keys()), path


def test_status_is_typed_and_nothing_else() -> None:
    """A newer operator may write other words, numbers and fields: only types are held."""
    limits = {"enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "maxItems", "default"}
    for path, node in STATUS.items():
        assert not limits & node.keys(), path
        assert "required" not in node or path == "status.conditions[]", path
        if "properties" in node:
            assert node["x-kubernetes-preserve-unknown-fields"] is True, path


def test_parts_of_the_status_have_one_owner() -> None:
    """The API server keeps no account of who wrote which of their fields; conditions are shared, as usual."""
    parts = ROOT["properties"]["status"]["properties"]
    assert {part.get("x-kubernetes-map-type") for part in parts.values() if part["type"] == "object"} == {
        "atomic"
    }
    assert parts["conditions"]["x-kubernetes-list-type"] == "map"


def test_every_rule_has_a_place_and_a_message() -> None:
    """Rules are found in the schema where they belong, and each says something of its own."""
    paths = {"": ROOT, **SPEC}
    assert {path: paths[path].get("x-kubernetes-validations") for path in RULES} == RULES
    messages = [rule["message"] for path, rules in RULES.items() for rule in rules if "prefix" not in path]
    assert len(set(messages)) == len(messages)


def test_field_paths_of_rules_exist() -> None:
    """An error points to a field that is there."""
    wrong = [
        (path, rule["fieldPath"])
        for path, rules in RULES.items()
        for rule in rules
        if "fieldPath" in rule and path + rule["fieldPath"] not in SPEC
    ]
    assert wrong == []


def test_columns() -> None:
    """`kubectl get rtj` shows these, from fields that exist."""
    columns = VERSION["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if "priority" not in column]
    assert shown == ["Phase", "Workers", "Step", "Ckpt", "Attempt", "Goodput", "Age"]
    assert "Reason" in [column["name"] for column in columns if column.get("priority") == 1]
    paths = [column["jsonPath"][1:] for column in columns if column["name"] != "Age"]
    assert [path for path in paths if path not in STATUS] == []


def test_names_and_subresources() -> None:
    """Short name, category, scale and status are there; uninstalling the chart keeps the definition."""
    names = crd()["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["rtj"], ["all"])
    scale = VERSION["subresources"]["scale"]
    assert scale["specReplicasPath"][1:] in SPEC
    assert {scale["statusReplicasPath"][1:], scale["labelSelectorPath"][1:]} <= STATUS.keys()
    assert VERSION["subresources"]["status"] == {}
    assert crd()["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_definition_is_small() -> None:
    """`kubectl apply` keeps a copy in an annotation, which may have 256 KiB."""
    assert len(as_yaml()) < 128 * 1024


def test_a_union_without_a_form_is_refused() -> None:
    """A field that a structural schema can't express fails here, not on the cluster."""

    class Odd(BaseModel):
        value: bool | Literal["x"] = True

    with pytest.raises(ValueError, match="no structural schema"):
        of_spec(Odd)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}", field
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields(kind)


STATUS_FIELDS = dict(_fields(JobStatus))


def test_what_may_be_none_is_none_when_it_is_left_out() -> None:
    """Nulls are not stored, so that only None may stand for nothing."""
    optional = {
        name: field for name, field in STATUS_FIELDS.items() if type(None) in get_args(field.annotation)
    }
    assert optional
    assert [name for name, field in optional.items() if field.default is not None] == []


def test_times_are_times() -> None:
    """What is named like a time is a `model.Time`, apart from the milliseconds of the ledger."""
    named = [
        path
        for path in STATUS
        if path.endswith(("At", "Since", "Until", "Deadline", "createAfter"))
        and not path.startswith("status.ledger")
    ]
    assert named
    wrong = [path for path in named if STATUS.get(f"{path}[]", STATUS[path]).get("format") != "date-time"]
    assert wrong == []


def test_each_default_is_told_in_words() -> None:
    """`kubectl explain` shows descriptions alone."""
    for path, default in (
        ("hangSeconds", "300"),
        ("drainOnCordon", "false"),
        ("budgets.userError", "limit 3, windowSeconds 86400"),
    ):
        assert SPEC[f"spec.recovery.{path}"]["description"].endswith(f" Default: {default}.")
