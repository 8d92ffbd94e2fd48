"""Secrets are taken out of every text; words that only look like secrets stay."""

from __future__ import annotations

import json

import pytest

from accel_bench.documents.redaction import Redactor, looks_secret
from accel_bench.result import Status

SECRET = "canary-5f3a9b7c1d"


USUAL_NAMES = """
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_KEY
    AZURE_STORAGE_CONNECTION_STRING AZURE_DEVOPS_EXT_PAT GOOGLE_APPLICATION_CREDENTIALS
    GCP_CREDENTIAL_JSON GCP_SA_KEY DIGITALOCEAN_ACCESS_TOKEN CLOUDFLARE_API_KEY LAMBDA_API_KEY
    HF_TOKEN HUGGING_FACE_HUB_TOKEN WANDB_API_KEY MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN
    COMET_API_KEY NEPTUNE_API_TOKEN CLEARML_API_SECRET_KEY KAGGLE_KEY NGC_CLI_API_KEY OPENAI_API_KEY
    OPENAI_APIKEY ANTHROPIC_API_KEY REPLICATE_API_TOKEN
    GITHUB_TOKEN GH_TOKEN GH_PAT CR_PAT GITLAB_PRIVATE_TOKEN CI_JOB_TOKEN NPM_TOKEN NPM_AUTH
    PYPI_TOKEN TWINE_PASSWORD POETRY_HTTP_BASIC_PYPI_PASSWORD CARGO_REGISTRY_TOKEN DOCKER_PASSWORD
    REGISTRY_AUTH DEPLOY_KEY SSH_PRIVATE_KEY SSH_KEY GPG_PASSPHRASE
    DB_PASSWORD DB_PASS DB_PWD DB_PW PGPASSWORD MYSQL_PWD MYSQL_ROOT_PASSWORD REDISCLI_AUTH
    MONGO_INITDB_ROOT_PASSWORD LDAP_PASSWD SMTP_PASS MAIL_PASSWORD CONNECTION_STRING SENTRY_DSN
    SLACK_BOT_TOKEN SLACK_WEBHOOK_URL DISCORD_WEBHOOK TEAMS_WEBHOOK_URL TELEGRAM_BOT_TOKEN
    STRIPE_KEY TWILIO_AUTH_TOKEN SENDGRID_API_KEY
    DJANGO_SECRET_KEY RAILS_MASTER_KEY APP_KEY FERNET_KEY ENCRYPTION_KEY SIGNING_KEY JWT
    JWT_SECRET COOKIE SESSION_COOKIE NETRC VAULT_TOKEN CLIENT_SECRET SERVICE_CREDENTIALS MYTOKEN
""".split()
"""Names of variables in manuals of clouds, hubs, forges, databases and web services."""


@pytest.mark.parametrize(
    "name", [*USUAL_NAMES, "accessToken", "--api-key", "auth.token", "smtp_pass", "API_KEY_2"]
)
def test_a_name_of_a_secret_is_known_and_its_value_redacted_everywhere(name: str) -> None:
    assert looks_secret(name)
    redactor = Redactor.from_environment({name: SECRET})
    assert redactor.redact(f"got {SECRET}, twice: {SECRET}") == (
        "got [redacted], twice: [redacted]"
    )


@pytest.mark.parametrize(
    "text",
    [
        "use_cls_token=True",
        "tokens_per_second=1234567890.123",
        "tokens_per_second_per_device=12345678",
        "pad_token='<|endoftext|>'",
        "pad_token=endoftext, eos_token_id=50256",
        "--pad-token endoftext --max-tokens 100000000",
        "PAD_TOKEN=endoftext",
        "TOKENIZERS_PARALLELISM=disabled",
        "seconds_per_token=0.000123456",
        "HF_TOKEN_PATH=/home/me/.cache/huggingface/token",
        "forward_pass=checkpointed FIRST_PASS=checkpointed PASSES=12345678",
        "key_value_cache=quantized",
        "sort_key=tokens_per_second TRITON_CACHE_KEY=0123456789 PUBLIC_KEY=0123456789 pat=[a-z]{9}",
        "KEYBOARD=dvorak-intl PWD=/home/me/work OLDPWD=/home/me/other SSH_ASKPASS=/usr/bin/ask",
        "tokenizer=bert-base-uncased max_tokens=12345678 MAX_TOKENS=12345678 COMPASS=northwest",
        "/home/me/books/author=somebody keys=12345678",
        "shared_keys=lm_head.weight WEBHOOK_FILE=/home/me/webhook",
        "https://huggingface.co/mistralai/Mistral-7B-v0.1?download=true",
        "https://example.org:8080/path@v1.2",
        "git@github.com:owner/name.git, ssh://git@github.com/owner/name",
        "hf_AutoModelForCausalLM, hf_transfer, sk-learn, task-oriented-dialogue-1234567890",
        "the secret of speed; a password is not needed; the basic idea of bearer plugins",
        "keyboard=12345678 monkey=12345678 key_value_heads=88888888",
        '{"token": "[PAD]", "unk_token": "unknown-word"}',
    ],
)
def test_words_that_are_no_secrets_stay(text: str) -> None:
    redactor = Redactor.from_environment(
        {
            "TOKENIZERS_PARALLELISM": "disabled",
            "HF_TOKEN": "short",
            "PATH": "/usr/bin:/bin",
            "PWD": "/home/me/work",
            "OLDPWD": "/home/me/other",
            "DATABASE_URL": "postgresql://me@tokenizer:5432/max_tokens",
        }
    )
    assert redactor.redact(text) == text
    assert redactor.redact_value({"text": [text]}) == {"text": [text]}
    assert redactor.redact_arguments(text.split()) == text.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:canary@db:5432/x", "postgresql://[redacted]@db:5432/x"),
        ("http://me:can@ary@proxy:3128", "http://[redacted]@proxy:3128"),
        ("redis://:canary@cache", "redis://[redacted]@cache"),
        ("https://canary0123456789canary@host/r.git", "https://[redacted]@host/r.git"),
        ("https://hub/x?token=canary&v=1", "https://hub/x?token=[redacted]&v=1"),
        ("https://s3/x?X-Amz-Signature=canary", "https://s3/x?X-Amz-Signature=[redacted]"),
        ("Authorization: Bearer canary.0123456789", "Authorization: Bearer [redacted]"),
        ("use hf_canary0123456789abcdefghijKLMNOP!", "use [redacted]!"),
        ("use hf_canaryabcdefghijklmnopqrstuvwxyzAB", "use [redacted]"),
        ("key=sk-proj-canary0123456789abcdef", "key=[redacted]"),
        ("ghp_canary0123456789abcdefghij0123456789", "[redacted]"),
        ("id AKIACANARY0123456789 of", "id [redacted] of"),
        ("eyJcanary0123456789.eyJcanary0123456789.sig_1", "[redacted]"),
        ("run --hf-token canary-01 --steps 3", "run --hf-token [redacted] --steps 3"),
        ("HF_TOKEN=canary-01 PATH=/usr/bin", "HF_TOKEN=[redacted] PATH=/usr/bin"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\ncanary\n-----END RSA PRIVATE KEY-----\nb",
            "a\n[redacted]\nb",
        ),
    ],
)
def test_secrets_known_by_their_shape_are_redacted(text: str, expected: str) -> None:
    assert Redactor().redact(text) == expected


def test_the_password_of_an_address_is_known_where_it_stands_alone() -> None:
    address = f"postgresql://me:{SECRET}@host:5432/runs"
    redactor = Redactor.from_environment({"DATABASE_URL": address})
    assert redactor.redact(f"login as me with {SECRET}") == "login as me with [redacted]"


def test_a_secret_is_found_as_urls_and_json_spell_it() -> None:
    secret = 'can/ary "ü"\\1'
    redactor = Redactor.from_environment({"API_KEY": secret})
    texts = [secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False)]
    texts += ["https://hub/?q=can/ary%20%22%C3%BC%22%5C1", "can%2Fary%20%22%C3%BC%22%5C1"]
    assert all("ary" not in redactor.redact(text) for text in texts)


def test_a_secret_of_many_lines_is_found_line_by_line() -> None:
    redactor = Redactor.from_environment({"PRIVATE_KEY": "head\ncanary0123456789abc\ntail"})
    assert redactor.redact("> canary0123456789abc") == "> [redacted]"


def test_the_longer_of_two_nested_secrets_goes_as_a_whole() -> None:
    redactor = Redactor.from_environment({"A_TOKEN": "canary01", "B_TOKEN": "canary01-and-more"})
    assert redactor.redact("canary01-and-more") == "[redacted]"


def test_values_are_redacted_in_depth_by_key_and_by_content() -> None:
    redactor = Redactor.from_environment({"HF_TOKEN": SECRET})
    value = {"log": [f"x {SECRET}"], "password": "hunter2hunter2", SECRET: {"n": 1.5, "none": None}}
    assert redactor.redact_value(value) == {
        "log": ["x [redacted]"],
        "password": "[redacted]",
        "[redacted]": {"n": 1.5, "none": None},
    }


def test_what_holds_no_secret_keeps_its_type() -> None:
    value = {"status": Status.OK, "steps": (1, 2.5, True, None, "text"), "list": ["a"]}
    redacted = Redactor.from_environment({"HF_TOKEN": SECRET}).redact_value(value)
    assert redacted == value
    assert redacted["status"] is Status.OK
    assert type(redacted["steps"]) is tuple


def test_arguments_lose_the_values_of_secret_flags_and_stay_as_many() -> None:
    arguments = ["accel-bench", "run", "a.yaml", "--token", "abc", "--api-key=x", "--set"]
    arguments += ["launcher.password=pw", "--set", "train.seed=3", "-q", "postgres://u:p@h/d"]
    assert Redactor().redact_arguments(arguments) == [
        "accel-bench",
        "run",
        "a.yaml",
        "--token",
        "[redacted]",
        "--api-key=[redacted]",
        "--set",
        "launcher.password=[redacted]",
        "--set",
        "train.seed=3",
        "-q",
        "postgres://[redacted]@h/d",
    ]


def test_a_secret_flag_without_a_value_does_not_eat_the_next_flag() -> None:
    arguments = ["login", "--token", "--verbose"]
    assert Redactor().redact_arguments(arguments) == arguments


@pytest.mark.parametrize(
    "unit", ["a", "a:", "://", "-", "=", "A=", "--a ", "hf_", "sk-a-", "eyJ", "@"]
)
def test_a_megabyte_of_anything_is_redacted_in_time_and_stays(unit: str) -> None:
    """A pattern that tries every start again would run into the time limit of the tests."""
    text = unit * (1_000_000 // len(unit))
    assert Redactor().redact(text) == text


def test_redacting_twice_changes_nothing_more() -> None:
    redactor = Redactor.from_environment({"HF_TOKEN": SECRET})
    once = redactor.redact(f"--token {SECRET} HF_TOKEN={SECRET} https://u:{SECRET}@h {SECRET}")
    assert redactor.redact(once) == once
    assert SECRET not in once


def test_an_override_in_one_argument_with_its_flag_is_looked_into() -> None:
    arguments = ["run", "--set=environment.HF_TOKEN=canary-0123", "--set=train.seed=1"]
    done = Redactor().redact_arguments(arguments)
    assert done == ["run", "--set=environment.HF_TOKEN=[redacted]", "--set=train.seed=1"]
