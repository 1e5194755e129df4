from tests.conftest import run_command


def test_demo_writes_a_report_and_prints_the_verdict(
    small_demo_plan, small_demo, tmp_path, monkeypatch, capsys
):
    result, _ = small_demo
    planned = []

    def plan_small_demo(*arguments, **options):
        planned.append((*arguments, options))
        return small_demo_plan

    monkeypatch.setattr("unibct.examples.demo.plan_demo", plan_small_demo)
    monkeypatch.setattr("unibct.examples.demo.run_demo", lambda *_, **__: result)
    options = ["--method", "unibct", "--seed", 3, "--set", "eta=1.0", "--out", tmp_path]
    assert run_command("demo", "--scenario", "open-class", *options) == 0
    assert planned == [("open-class", "unibct", 3, {"overrides": ["eta=1.0"]})]
    lines = capsys.readouterr().out.splitlines()
    assert f"verdict: {result.evaluation.verdict}" in lines
    assert any("The upgrade, carried out on a gallery" in line for line in lines)
    assert lines[-2].startswith(f"gallery: {result.gallery.folder}")
    assert lines[-1] == f"report: {tmp_path / 'report.html'}"
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
