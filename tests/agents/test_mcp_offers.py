"""What MCP servers say reaches a model within bounds, whatever they say."""

import pytest
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from fanfold.agents.tools.mcp_servers import OPEN, clean_schema, result_value
from fanfold.language.json_text import misfits


def text(words: str) -> TextContent:
    return TextContent(text=words)


def test_binary_files_are_listed_in_one_line_each():
    result = CallToolResult(
        content=[
            text("before"),
            AudioContent(data="A" * 400, mime_type="audio/wav"),
            ResourceLink(name="plan", uri="file:///plan.md"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///a.md", text="the words")),
            EmbeddedResource(resource=BlobResourceContents(uri="file:///b.bin", blob="A" * 8)),
        ]
    )
    assert result_value(result)["text"].splitlines() == [
        "before",
        "[audio, audio/wav, about 300 bytes, not shown]",
        "[resource plan: file:///plan.md]",
        "[resource file:///a.md]",
        "the words",
        "[resource file:///b.bin, about 6 bytes, not shown]",
    ]


@pytest.mark.parametrize(
    ("words", "value", "given"),
    [
        ("", {"a": 1}, {"structured": {"a": 1}}),
        ('{"a": 1}', {"a": 1}, {"structured": {"a": 1}}),
        ("one a", {"a": 1}, {"structured": {"a": 1}, "text": "one a"}),
        ("[" * 10_000, [], {"structured": [], "text": "[" * 10_000}),
        ("", None, {"text": ""}),
    ],
)
def test_a_value_is_given_as_such_and_its_text_only_when_it_says_more(words, value, given):
    content: list[ContentBlock] = [text(words)] if words else []
    assert result_value(CallToolResult(content=content, structured_content=value)) == given


def test_a_value_that_is_too_long_is_cut_as_text():
    given = result_value(CallToolResult(content=[text("y" * 20_000)], structured_content={"a": "x" * 50_000}))
    assert "characters left out" in given["structured"]
    assert "characters left out" in given["text"]
    assert len(given["structured"]) + len(given["text"]) < 17_200


def test_a_schema_keeps_descriptions_and_drops_keywords_that_providers_refuse():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://a.example/schema",
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {"$ref": "#/$defs/one"}, "$ref": {"type": "string"}},
        "$defs": {"one": {"type": "integer", "minimum": 3}},
    }
    cleaned = clean_schema(schema)
    assert cleaned == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/one"}, "$ref": {"type": "string"}},
        "$defs": {"one": {"type": "integer", "minimum": 3}},
    }
    assert misfits(cleaned, {"a": 1})
    assert not misfits(cleaned, {"a": 3})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"properties": {"a": {"$dynamicRef": "https://a.example/x"}}},
        {"properties": {"a": {"$id": "https://a.example/x", "$ref": "#/b"}}},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"default": "\ud800"}}},
    ],
)
def test_a_schema_that_cannot_be_checked_here_takes_any_object(schema):
    assert clean_schema(schema) == OPEN
    assert not misfits(clean_schema(schema), {"a": "anything"})
