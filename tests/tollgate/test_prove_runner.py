"""`make prove`: a claim that fails, a proof that breaks and a proof that claims nothing all fail the run."""

import sys
import types

import pytest

from tests.prove import __main__ as runner
from tests.prove.report import Report


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> types.ModuleType:
    """A proof named `sample` that is the only one."""
    module = types.ModuleType("tests.prove.sample", "What it proves.\n\nMore about it.")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(runner, "names", lambda: ["sample"])
    monkeypatch.setattr(runner, "KEPT", tmp_path / "kept" / "report.txt")  # type: ignore[operator]
    return module


def test_a_proof_whose_claims_hold_passes_and_is_told_its_form_and_seed(
    proof: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(short: bool, seed: int) -> Report:
        report = Report()
        report.claim("charges per call", True, 1)
        report.figure("seed", seed if short else None)
        return report

    proof.run = run  # type: ignore[attr-defined]
    assert runner.main(["sample", "--short", "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert "sample: What it proves." in said
    assert "holds  charges per call: 1" in said
    assert "seed: 7" in said
    assert said.endswith("1 passed, 0 failed\n")
    assert "charges per call" in runner.KEPT.read_text()


def test_a_claim_that_fails_fails_the_run(
    proof: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report()
    report.claim("charges per call", False, 2)
    proof.run = lambda short, seed: report  # type: ignore[attr-defined]
    assert runner.main([]) == 1
    assert "FAILS  charges per call: 2" in capsys.readouterr().out


def test_a_proof_that_breaks_fails_the_run_with_its_traceback(
    proof: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(short: bool, seed: int) -> Report:
        raise RuntimeError("no engine")

    proof.run = run  # type: ignore[attr-defined]
    assert runner.main([]) == 1
    assert "RuntimeError: no engine" in capsys.readouterr().out


def test_a_proof_that_claims_nothing_fails_the_run(proof: types.ModuleType) -> None:
    proof.run = lambda short, seed: Report()  # type: ignore[attr-defined]
    assert runner.main([]) == 1


def test_an_unknown_name_is_refused_with_those_there_are(
    proof: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        runner.main(["sampel"])
    assert "there are: sample" in capsys.readouterr().err
