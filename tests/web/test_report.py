"""The report of a plan or an arrangement: all its parts, nothing loaded, hostile names inert, whole or not at all."""

import hashlib
import json
import re
import shlex
from copy import copy
from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner

import weft
from weft.commands.app import cli
from weft.errors import BadInput

HOSTILE = "<script>alert(1)</script>|`x`"


@cache
def planned():
    return weft.plan("gpt2-124m", "a100-8", top=6)


@cache
def planned_page():
    return weft.make_report(planned())


def test_a_page_says_all_parts_and_loads_nothing():
    page = planned_page()
    for name in ("memory-against-time", "comparison", "launch", "provenance"):
        assert f'<h2 id="{name}"' in page
        assert f'href="#{name}"' in page
    for name in ("time-of-the-best-layout", "memory", "rejected-layouts"):
        assert f'<h2 id="{name}"' in page
    assert page.count('class="weft-chart"') == 2
    assert page.count("data-sortable") >= 3
    assert not re.search(r'(src|href)="(?!#)', page)
    assert len(page.encode()) < 3_000_000


def test_the_command_to_copy_estimates_the_first_layout():
    plan = weft.plan("gpt2-124m", "a100-8", top=2, batch=48, attention="unfused", reduce_bf16=True)
    (command,) = re.findall(r"^weft (estimate .*)$", weft.make_report(plan, form="md"), re.MULTILINE)
    result = CliRunner().invoke(cli, [*shlex.split(command), "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["estimate"]["iteration_s"] == plan.best.iteration_s


@pytest.mark.parametrize("form", ["html", "md"])
def test_hostile_names_are_inert(form):
    job = replace(planned().job, model=replace(planned().job.model, name=HOSTILE))
    text = weft.make_report(replace(planned(), job=job), form=form)
    assert "<script>alert" not in re.sub(r"(?ms)^```.*?^```", "", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_plan_without_layouts_says_so():
    text = weft.make_report(replace(planned(), ranked=(), pareto=(), choice=None))
    assert "No layout fits" in text
    assert 'id="rejected-layouts"' in text
    assert 'id="launch"' not in text


def test_the_command_writes_the_file_whole_or_not_at_all(tmp_path):
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    planned().save(plan)
    done = CliRunner().invoke(cli, ["report", str(plan), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text() == planned_page()
    plan.write_text("{}")
    before = page.read_bytes()
    found = CliRunner().invoke(cli, ["report", str(plan), "-o", str(page)])
    assert isinstance(found.exception, BadInput)
    assert found.exception.exit_code == 2
    assert page.read_bytes() == before


def test_an_arrangement_has_all_parts_and_loads_nothing(tmp_path, arranged_site):
    path = tmp_path / "arranged.json"
    arranged_site.save(path)
    page = weft.make_report(path)
    for name in ("policies", "job-placement", "busiest-links", "search", "assumed"):
        assert f'<h2 id="{name}"' in page
    for name in ("launch", "provenance"):
        assert f'<h2 id="{name}"' in page
        assert f'href="#{name}"' in page
    assert page.count('class="weft-chart"') == 1
    assert not re.search(r'(src|href)="(?!#)', page)
    assert len(page.encode()) < 3_000_000
    assert page == weft.make_report(arranged_site)


def test_an_arrangement_says_what_the_verb_found(arranged_site):
    text = weft.make_report(arranged_site, form="md")
    for name in arranged_site.policies:
        assert any(line.startswith(f"| {name} |") for line in text.splitlines())
    for row in arranged_site.to_dict()["jobs"]:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row['name']} |") and "%" not in line]
        assert f"| {row['slowdown']:.4f} |" in line
        assert row["hostfile"] in text
        assert f"--job {row['name']} --tool megatron -o {row['name']}.sh --files {row['name']}-files" in text
        assert f"sbatch {row['name']}-files/job.slurm PROGRAM" in text
    digest = hashlib.sha256(arranged_site.to_json().encode()).hexdigest()
    assert digest in text


@pytest.mark.parametrize("form", ["html", "md"])
def test_hostile_names_of_jobs_and_hosts_are_inert(arranged_site, form):
    names = (HOSTILE, *arranged_site.clock.site.host_names[1:])
    jobs = tuple(replace(job, name=f"{HOSTILE}{number}") for number, job in enumerate(arranged_site.clock.site.jobs))
    clock = copy(arranged_site.clock)
    clock.site = replace(clock.site, name=HOSTILE, host_names=names, jobs=jobs)
    text = weft.make_report(replace(arranged_site, clock=clock), form=form)
    shown = re.sub(r"(?ms)^```.*?^```", "", text)
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
