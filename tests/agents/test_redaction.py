"""Secrets are taken out, and nothing else is touched."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.agents.redaction import MARK, Redactor, looks_secret

KEY = "k3y-of-the-engine-0123456789"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnopqrstuvwx",
        "sk-proj-abc_DEF-ghijklmnop1234",
        "sk-ant-api03-AAAA_bbbb-cccc1234567890",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 10,
        "glpat-" + "a1B2" * 5,
        "xoxb-1234567890-abcdef",
        "AIza" + "a1B2c" * 7,
        "hf_" + "a1B2" * 9,
        "sk_live_" + "a1B2" * 5,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.c2lnbmF0dXJlMTIz",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
        KEY,
    ],
)
@pytest.mark.parametrize("frame", ["{}", "KEY={}\n", 'x: "{}",', "Bearer {} ", "({})"])
def test_texts_that_look_like_keys_are_redacted_and_their_context_stays(secret, frame):
    assert Redactor([KEY]).text(frame.format(secret)) == frame.format(MARK)


def test_a_password_without_a_name_in_an_address_goes():
    assert Redactor().text("redis://:pass-word@host:6379/0") == "redis://[redacted]@host:6379/0"


def test_a_password_in_an_address_goes():
    assert Redactor().text("postgres://me:s3cret@db/x") == f"postgres://{MARK}@db/x"


@pytest.mark.parametrize(
    "harmless",
    [
        "task-abcdefghijklmnopqrstuvwx",
        "risk-adjusted-return-on-capital-employed",
        "gAAAAABsk-abcdefghijklmnopqrstuvwxyz0123456789",
        "https://example.org/a:b@c",
        "8f14e45fceea167a5a36dedd4bea2543",
    ],
)
def test_texts_that_only_resemble_keys_stay(harmless):
    assert Redactor().text(harmless) == harmless


@pytest.mark.parametrize(
    "name",
    "CI_JOB_JWT BEARER AUTHORIZATION DB_CREDS WALLET_MNEMONIC PASSCODE SLACK_WEBHOOK_URL".split(),
)
def test_the_name_of_a_variable_marks_its_value_as_secret(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", "LANG PWD KEYBOARD XDG_SESSION_ID AUTHOR_NAME INCREDIBLE COMPASS".split())
def test_a_name_that_only_resembles_one_is_lent(name):
    assert not looks_secret(name)


def test_values_of_the_environment_go_by_the_name_they_have():
    environment = {
        "OPENAI_API_KEY": "short-one",
        "DB_PASSWORD": "correct-horse-battery",
        "SOME_KEY": "tiny",
        "PATH": "/usr/local/bin:/usr/bin",
    }
    redactor = Redactor.of(environment, also=["given-by-hand", None])
    text = "short-one correct-horse-battery tiny /usr/local/bin:/usr/bin given-by-hand"
    assert redactor.text(text) == f"{MARK} {MARK} tiny /usr/local/bin:/usr/bin {MARK}"
    assert Redactor(["a/b+c=d&e"]).text("q=a%2Fb%2Bc%3Dd%26e") == f"q={MARK}"


def test_a_secret_that_begins_with_another_goes_as_a_whole():
    assert Redactor(["abcdefgh", "abcdefgh-ijkl"]).text("abcdefgh-ijkl") == MARK


@pytest.mark.parametrize("frame", ["said {}", "said {}…", "said {}…, and more"])
def test_the_rest_of_a_cut_secret_is_redacted_too(frame):
    half = len(KEY) // 2
    for kept in range(half, len(KEY)):
        assert Redactor([KEY]).text(frame.format(KEY[:kept])) == frame.format(MARK)
    for little in (KEY[: half - 1], KEY[:half] + "!"):
        assert Redactor([KEY]).text(frame.format(little)) == frame.format(little)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.full
@given(values)
def test_a_value_without_secrets_comes_back_as_the_same_object(value):
    assert Redactor([KEY]).json(value) is value


@pytest.mark.full
@given(values)
def test_no_secret_survives_anywhere_in_a_value(value):
    hidden = {"deep": [value, {KEY: [f"a {KEY} b", 1, None]}], "same": value}
    clean = Redactor([KEY]).json(hidden)
    assert KEY not in repr(clean)
    assert clean["deep"][1] == {MARK: [f"a {MARK} b", 1, None]}
    assert clean["same"] is value


@pytest.mark.parametrize(
    "secret", [KEY, 'pass"word\\with-é-odd/chars', "nothing-to-see-here", "back\\slash-0123456"]
)
def test_encoded_json_loses_the_same_as_the_value_in_it(secret):
    redactor = Redactor([secret])
    inner = msgspec.json.encode({"inside": secret}).decode()
    for value in (
        secret,
        [f"a {secret} b"],
        {secret: 1},
        {"text": inner},
        f"\n{secret[1:]}\\",
        "plain",
        [1, None],
    ):
        data = msgspec.json.encode(value)
        clean = redactor.encoded(data)
        assert msgspec.json.decode(clean) == redactor.json(value, shapes=False)
        assert (clean is data) == (redactor.json(value, shapes=False) is value)


def test_text_that_is_no_json_loses_its_secrets_too():
    assert Redactor([KEY]).encoded(f"key: {KEY}\n".encode()) == f"key: {MARK}\n".encode()


@given(st.binary(max_size=40))
def test_an_empty_project_starts_no_search(data):
    assert Redactor().encoded(data) is data
    assert Redactor().known(repr(data)) == repr(data)
