import re

from tests.benchmark.finished_benchmark import METHODS
from tests.conftest import TINY_OPTIONS, run_command


def test_the_command_line_plans_without_writing_and_reports_without_training(
    finished, grid, tmp_path, capsys
):
    benchmark, _ = finished
    common = [
        "benchmark", grid.data, "--test", grid.test, "--methods", ",".join(METHODS),
        "--scenarios", "extended-data,open-class", "--chain", "unibct-plus",
        *TINY_OPTIONS,
    ]  # fmt: skip

    def run(*options):
        return run_command(*common, *options), capsys.readouterr()

    code, plan = run("--dry-run", "--seeds", "0,1", "--out", str(tmp_path / "none"))
    assert code == 0
    assert "cells/open-class/unibct-plus/seed1" in plan.out
    assert re.search(r"24 of 24 jobs to run, \d+ at a time with \d+ threads? each\n", plan.out)
    assert not (tmp_path / "none").exists()
    code, report = run("--report-only", "--seeds", "0,1", "--out", str(benchmark.workspace.out))
    assert code == 0
    assert "Verdicts" in report.out
    assert (benchmark.workspace.out / "report.html").is_file()
    code, nothing = run("--report-only", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "holds no finished result" in nothing.err
    code, refused = run("--report-only", "--only", "open-class", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "--only says what to run, but --report-only runs nothing" in refused.err
    code, bad = run("--seeds", "a", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "--seeds a: write numbers" in bad.err
