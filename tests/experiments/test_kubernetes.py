"""The job on the page about Kubernetes is valid YAML and calls a command that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everypair import cli

PAGE = Path(__file__).parents[2] / "docs" / "experiments" / "kubernetes.md"


def test_the_job_calls_the_command_line(capsys):
    yaml = pytest.importorskip("yaml")
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (line,) = container["args"]
    assert line.startswith("exec everypair experiment cifar10")
    assert cli.main(["experiment", "--help"]) == 0
    known = capsys.readouterr().out
    for name in re.findall(r"--[a-z-]+", line):
        assert name in known
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert {variable["name"] for variable in container["env"]} == {"STUDY_URL", "EVERYPAIR_DATA"}
