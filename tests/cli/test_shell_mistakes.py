"""What a shell and its user do wrong: streams closed or full, files that cannot be, and odd lifetimes of a key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace.cli.main import main
from headrace.cli.settings import read_file
from headrace.errors import SettingsError
from headrace.yaml_text import read_yaml

COMMAND = (sys.executable, "-m", "headrace")


def add_key(path: Path, *flags: str) -> int:
    return main(["keys", "add", "alice", "--keys-file", str(path), *flags])


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("headrace ")


def test_a_key_that_is_given_twice_in_a_settings_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("gateway:\n  port: 1\n  port: 2\n")

    with pytest.raises(SettingsError, match="'port' stands there twice"):
        read_file(str(file))


def test_a_merged_mapping_may_be_overridden() -> None:
    text = "base: &base {port: 1, host: a}\ngateway:\n  <<: *base\n  port: 2\n"

    assert read_yaml(text) == {"base": {"port": 1, "host": "a"}, "gateway": {"port": 2, "host": "a"}}


@pytest.mark.parametrize("lifetime", ["0s", "0", "1ms", "99999999999d"])
def test_a_key_cannot_be_added_with_a_lifetime_that_is_none(
    tmp_path: Path, lifetime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        add_key(tmp_path / "keys.yaml", "--expires-in", lifetime)

    assert ended.value.code == 2
    assert "is not between 1s and 36500d" in capsys.readouterr().err
    assert not (tmp_path / "keys.yaml").exists()


def test_a_budget_of_one_period_that_is_given_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add_key(tmp_path / "keys.yaml", "--budget", "month=3", "--budget", "month=5") == 2
    assert "give each period once" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_key_that_could_not_be_shown_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "keys", "add", "alice", "--keys-file", str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr) == (1, "headrace: cannot write the output: No space left on device\n")
    assert yaml.safe_load(file.read_text()) == {"keys": []}


def test_a_reader_that_has_left_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "replay", "--generate", "agentic", "--sessions", "1", "--endpoints", "1", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_standard_stream_is_an_empty_one(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "keys.yaml"
    line = f'exec "$@" {closed}'

    done = subprocess.run(
        ["/bin/sh", "-c", line, "sh", *COMMAND, "keys", "add", "alice", "--keys-file", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_demo_needs_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert main(["demo", "--model", str(tmp_path), "--engines", "0"]) == 2
    assert "--engines is 0" in capsys.readouterr().err


def test_a_report_that_could_not_be_written_is_refused_before_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--generate", "agentic", "--report", str(tmp_path / "none" / "page.html")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "--report" in told.err


def test_a_load_of_no_file_is_refused_before_the_server_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--base-url", "http://127.0.0.1:9", "--model", "m", "--dataset-name", "sharegpt"]

    assert main(["bench", "serve", *flags, "--dataset-path", str(tmp_path / "none.json")]) == 2
    assert "dataset_path" in capsys.readouterr().err


def test_without_the_demo_model_here_tokenize_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["tokenize"]) == 2
    assert "run from the repository's root" in capsys.readouterr().err


def test_letters_that_the_locale_lacks_are_escaped(tmp_path: Path) -> None:
    vocabulary = {"type": "WordLevel", "vocab": {"\u00e9": 0}, "unk_token": "\u00e9"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": vocabulary}))
    (tmp_path / "text").write_text("\u00e9", encoding="utf-8")

    done = subprocess.run(
        [*COMMAND, "tokenize", "--model", str(tmp_path), "--pieces", str(tmp_path / "text")],
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b'0\t"\\xe9"\n', b"")


@pytest.mark.parametrize(
    "line", [["gateway", "--endpoints", "http://127.0.0.1:9"], ["serve", "models/demo", "--tensor-parallel", "2"]]
)
def test_a_flag_that_is_only_begun_is_refused(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(line)

    assert f"unrecognized arguments: {line[-2]}" in capsys.readouterr().err
