"""The laboratory: sweeps that resume, that do not depend on who works, and a report that stands alone."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lab_cases
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab_cases import CASE, RUNS, Contrary
from matplotlib.figure import Figure

import anchorhead as ah
from anchorhead.lab import experiments
from anchorhead.lab.experiment import Experiment, Rows, Task
from anchorhead.lab.experiments import ALL, beta, boundaries, cost, length, maps, named, rates, sequences, training
from anchorhead.lab.experiments.rates import fitted_slope
from anchorhead.lab.figures import Figures
from anchorhead.lab.folder import results_folder
from anchorhead.lab.ledger import Ledger
from anchorhead.lab.published import HELD_OUT, PublishedLayer, in_first_feature, ramp_data, train
from anchorhead.lab.reproduce import reproduce
from anchorhead.lab.sweep import Crew, State, crew, sweep, work


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The small experiment, known by its name to workers of this process."""
    monkeypatch.setattr(experiments, "ALL", (*ALL, CASE))
    RUNS.clear()
    return CASE


def ledger(folder: Path) -> Ledger:
    return Ledger(folder, CASE, CASE.tasks(False))


def swept(folder: Path, seed: int = 0, window: int = 1) -> Ledger:
    """The small experiment run into a folder."""
    found = ledger(folder)
    sweep([found], Crew(Contrary(seed, window), window))
    return found


# Results as they come


def test_rows_come_back_as_they_were_written(case: Experiment, tmp_path: Path) -> None:
    before, after = swept(tmp_path).rows(), ledger(tmp_path).rows()
    assert [{name: repr(v) for name, v in row.items()} for row in after] == [
        {name: repr(v) for name, v in row.items()} for row in before
    ]
    assert not ledger(tmp_path).missing()
    assert "clock" not in (tmp_path / "case.csv").read_text()
    assert "clock" in (tmp_path / "case.times.csv").read_text().splitlines()[0]


def test_file_does_not_depend_on_who_finishes_first(case: Experiment, tmp_path: Path) -> None:
    texts = set()
    for seed, window in ((0, 1), (1, 2), (2, 4), (3, 8)):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        swept(folder, seed, window)
        texts.add((folder / "case.csv").read_bytes())
    assert len(texts) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small experiment, finished."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "ALL", (*ALL, CASE))
        swept(folder)
    return folder


@given(cut=st.integers(0, 2000), times=st.integers(0, 2000))
def test_what_was_cut_off_is_computed_again_and_nothing_else(cut: int, times: int, whole: Path) -> None:
    """Both files end anywhere; tasks of which all rows are left are kept, and the file ends up the same."""
    wanted, clocks = (whole / "case.csv").read_bytes(), (whole / "case.times.csv").read_bytes()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "ALL", (*ALL, CASE))
        folder = Path(name)
        (folder / "case.csv").write_bytes(wanted[:cut])
        (folder / "case.times.csv").write_bytes(clocks[:times])
        resumed = ledger(folder)
        kept = len(resumed.tasks) - len(resumed.missing())
        assert kept == min(whole_tasks(wanted[:cut]), whole_tasks(clocks[:times]))
        RUNS.clear()
        sweep([resumed], Crew(Contrary(0, 1), 1))
        assert sum(RUNS.values()) == len(resumed.tasks) - kept
        assert (folder / "case.csv").read_bytes() == wanted


def whole_tasks(text: bytes) -> int:
    """In how many lines, of those that are whole, the row is the last of its task."""
    lines = csv.DictReader(text[: text.rfind(b"\n") + 1].decode().splitlines())
    return sum(line["row"] == line["rows"] for line in lines)


def test_results_of_another_grid_stay(case: Experiment, tmp_path: Path) -> None:
    """A quick run after a full one loses nothing, and a full one after a quick one computes only the rest."""
    swept(tmp_path)
    before = (tmp_path / "case.csv").read_text().splitlines()
    few = Ledger(tmp_path, CASE, CASE.tasks(False)[2:4])
    assert not few.missing()
    few.finish()
    assert sorted((tmp_path / "case.csv").read_text().splitlines()) == sorted(before)
    assert not ledger(tmp_path).missing()


def test_quick_tasks_are_among_all_tasks() -> None:
    for experiment in ALL:
        if experiment.name != "in_context":  # fewer steps
            full = {str(task) for task in experiment.tasks(False)}
            assert {str(task) for task in experiment.tasks(True)} <= full, experiment.name


def test_tasks_differ_and_have_the_same_names() -> None:
    for experiment in ALL:
        for quick in (False, True):
            tasks = experiment.tasks(quick)
            assert len({str(task) for task in tasks}) == len(tasks)
            assert len({tuple(task.setting) for task in tasks}) == 1


def test_progress_says_what_runs_and_what_remains(case: Experiment, tmp_path: Path) -> None:
    said: list[State] = []
    found = ledger(tmp_path)
    sweep([found], Crew(Contrary(0, 2), 2), said.append)
    assert said[0].done == {"case": 0}
    assert said[0].total == {"case": len(found.tasks)}
    assert all(name.startswith("case: size ") for name in said[0].running)
    assert len(said[0].running) == 2
    assert said[-1].done == said[-1].total


# What is refused


def test_failing_task_is_named_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(setting: Any, seed: int) -> Any:
        if setting["size"] == 2.5 and seed == 4:
            raise ArithmeticError("too large")
        return lab_cases.run(setting, seed)

    broken = Experiment("case", "", "", CASE.tasks, run, CASE.figures, CASE.findings, CASE.clocked)
    monkeypatch.setattr(experiments, "ALL", (*ALL, broken))
    with pytest.raises(ah.AnchorheadError, match=r"case failed at size 2.5, how a, b, seed 4: .*too large.*is kept"):
        swept(tmp_path)
    assert len(ledger(tmp_path).missing()) < len(CASE.tasks(False))


def test_results_of_other_software_are_not_mixed_in(case: Experiment, tmp_path: Path) -> None:
    with results_folder(tmp_path):
        pass
    versions = json.loads((tmp_path / "versions.json").read_text())
    (tmp_path / "versions.json").write_text(json.dumps({**versions, "torch": "1.0"}))
    with pytest.raises(ah.FileError, match=r"torch 1\.0 then"), results_folder(tmp_path):
        pass


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n")
    with pytest.raises(ah.FileError, match="choose another folder"), results_folder(tmp_path):
        pass
    with pytest.raises(ah.FileError, match="cannot be made"), results_folder(tmp_path / "mine.csv" / "below"):
        pass


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with results_folder(tmp_path), pytest.raises(ah.FileError, match="Another run"), results_folder(tmp_path):
        pass


def test_files_that_are_no_text_are_refused(case: Experiment, tmp_path: Path) -> None:
    (tmp_path / "case.csv").write_bytes(b"size\xff\n")
    with pytest.raises(ah.FileError, match="cannot be read"):
        ledger(tmp_path)


def test_columns_of_another_version_are_refused(case: Experiment, tmp_path: Path) -> None:
    (tmp_path / "case.csv").write_text("size,seed,row,rows\n1,2,1,1\n")
    with pytest.raises(ah.FileError, match="other columns"):
        ledger(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"only": ["rate"]}, "no experiment 'rate'; there are rates, maps"),
        ({"only": ["maps", "maps"]}, "twice"),
        ({"workers": 0}, "at least 1"),
        ({"workers": 2, "scheduler": "tcp://127.0.0.1:1"}, "not both"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ah.InputError, match=sentence):
        reproduce(tmp_path, quick=True, **arguments)


def test_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(ah.InputError, match="No Dask scheduler answers"), crew(scheduler="tcp://127.0.0.1:1"):
        pass


# The same numbers, whoever computes them


@pytest.mark.heavy
def test_dask_cluster_gives_the_same_files_to_the_last_bit(tmp_path: Path) -> None:
    """Training and constructing, in two processes of ours and in a cluster's."""
    from distributed import LocalCluster

    only = ["maps", "sequences"]
    reproduce(tmp_path / "processes", quick=True, only=only, workers=2)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        reproduce(tmp_path / "cluster", quick=True, only=only, scheduler=cluster.scheduler_address)
    for name in ("maps.csv", "sequences.csv"):
        assert (tmp_path / "processes" / name).read_bytes() == (tmp_path / "cluster" / name).read_bytes()


@pytest.mark.heavy
def test_killed_run_resumes_and_recomputes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from anchorhead.__main__ import main; main()"]
    command += ["reproduce", "--quick", "--only", "length", "-o", str(tmp_path), "--workers", "2"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    for line in started.stderr:
        if "remain" in line:
            break
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    left = (tmp_path / "length.csv").read_text()
    kept = left[: left.rfind("\n")].splitlines()[1:]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 0 < len(kept) < found["tasks"]
    assert found["computed"] == found["tasks"] - len(kept)
    assert set(kept) <= set((tmp_path / "length.csv").read_text().splitlines())


def test_training_is_the_same_each_time() -> None:
    data = ramp_data(1, tokens=4, features=3, sequences=100)

    def once() -> torch.Tensor:
        draw = torch.Generator().manual_seed(5)
        model = PublishedLayer(4, 3, 8, 2, draw)
        train(model, data.inputs.float(), in_first_feature(data.target(-5, 5).float()), 2, draw)
        torch.rand(1)  # whatever else draws from torch's own generator
        return model(data.inputs.float()).detach()

    assert torch.equal(once(), once())


def test_work_leaves_one_thread(case: Experiment) -> None:
    task = CASE.tasks(False)[0]
    assert work("case", task.setting, task.seed)[0]["word"] == "x0"
    assert torch.get_num_threads() == 1


# What the experiments say


def test_published_layer_holds_the_theorem() -> None:
    """The construction written into the published architecture is the theorem's network, to float32 rounding."""
    data = ramp_data(1234)
    model = ah.theorems.single_head(data.weights, data.bias, -25, 25, anchors=60)
    layer = PublishedLayer(50, 10, 60, 1, torch.Generator().manual_seed(0))
    layer.start_at_anchors(data.weights.float(), data.bias.float(), torch.linspace(-25, 25, 60), model.beta)
    x = data.inputs[-HELD_OUT:]
    difference = (layer(x.float()).double() - in_first_feature(model(x)[..., 0])).abs()
    assert difference.mean().item() < 1e-3
    square = (layer(x.float())[..., 0].double() - model.exact(x)[..., 0]).square().mean().item()
    assert square == pytest.approx((model(x) - model.exact(x)).square().mean().item(), rel=1e-3)


def test_constructed_slopes_are_those_of_the_theorems() -> None:
    """-1 in anchors and heads, 1 in the range, each within 0.05."""
    tasks = [
        task for task in rates.tasks(False) if str(task.setting["how"]).startswith("constructed") and task.seed < 1237
    ]
    rows = Rows({**t.setting, "seed": t.seed, **rates.run(t.setting, t.seed)[0]} for t in tasks)
    assert rows.within_bounds()
    for sweep_, wanted in (("p", -1), ("H", -1), ("width", 1)):
        mine = rates.swept(rows, sweep_)
        assert abs(fitted_slope(mine, sweep_, "sup").value - wanted) < 0.05
        if sweep_ != "width":  # in a wider range fewer ramps are clipped, which are exact
            assert abs(fitted_slope(mine, sweep_, "mean_square", power=0.5).value - wanted) < 0.05


@given(slope=st.floats(-3, 3), level=st.floats(0.1, 10), noise=st.floats(0, 0.2))
def test_slope_of_a_power_law_is_found_with_its_interval(slope: float, level: float, noise: float) -> None:
    draw = np.random.default_rng(0)
    rows = Rows(
        {"size": n, "seed": s, "error": level * n**slope * math.exp(noise * draw.normal())}
        for s in range(11)
        for n in (2, 4, 8, 16, 32)
    )
    found = fitted_slope(rows, "size", "error")
    assert abs(found.value - slope) <= 3 * found.half_width + 1e-9
    assert found.half_width <= noise + 1e-9


def test_an_error_that_is_no_number_keeps_no_bound() -> None:
    rows = [{"sup": 1.0, "bound": 2.0}, {"sup": 5.0, "bound": math.nan}]
    assert Rows(rows).within_bounds()
    assert not Rows([*rows, {"sup": math.nan, "bound": 2.0}]).within_bounds()


def test_bands_of_distance_are_named_by_both_ends() -> None:
    rows = boundaries.run({"place": "seam", "sharpness": 10, "how": "one head"}, 0)
    assert [row["from_distance"] for row in rows[1:]] == [row["to_distance"] for row in rows[:-1]]
    seam = [{"place": "seam", "sharpness": 40, "how": how, **row} for how in ("gated", "smooth") for row in rows]
    figure, *_ = boundaries.figures(Rows({**row, "sup": 0.0} for row in seam)).values()
    gated, smooth = figure.axes[0].lines
    assert min(gated.get_ydata()) == 1e-17  # zero, as the text says
    assert gated.get_linewidth() > smooth.get_linewidth()  # which is drawn over it


def test_numbers_that_someone_changed_into_words_are_refused(tmp_path: Path) -> None:
    with results_folder(tmp_path):
        found = Ledger(tmp_path, named("length"), length.tasks(True))
        for task in found.tasks:
            found.add(task, [{"sup": "much", "bound": 1.0, "keys": 1, "nanoseconds_per_token": 1.0}])
    with pytest.raises(ah.FileError, match="Remove that file"):
        reproduce(tmp_path, quick=True, only=["length"])


def test_slopes_of_one_seed_and_of_two_sizes() -> None:
    rows = Rows({"size": n, "seed": 0, "error": 1 / n} for n in (2, 4))
    assert str(fitted_slope(rows, "size", "error")) == "-1.000"
    assert math.isnan(fitted_slope(Rows([{"size": 2, "seed": 0, "error": 1.0}]), "size", "error").value)


SMALLER: list[tuple[Any, str, Any]] = [
    (rates, "EPOCHS", 1), (maps, "EPOCHS", 1), (boundaries, "KEYS", 8), (sequences, "FRESH", 200),
    (beta, "POINTS", 201), (length, "HUES", {4: "#000000"}), (cost, "STEPS", 20),
    (training, "STEPS", 10),
    (cost, "QUICK", {how: sizes[:2] for how, sizes in cost.QUICK.items()}),
]  # fmt: skip
"""What takes time, cut down: the figures and sentences are the same."""


@pytest.mark.heavy
def test_of_a_finished_run_nothing_is_drawn_anew_unless_something_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for where, name, value in SMALLER:
        monkeypatch.setattr(where, name, value)
    module = sys.modules["anchorhead.lab.reproduce"]
    found = reproduce(tmp_path, quick=True, only=("beta",), workers=1, progress=False)
    page, drawn = found.page.read_bytes(), []
    section = module._section
    monkeypatch.setattr(module, "_section", lambda *args: drawn.append(args) or section(*args))
    again = reproduce(tmp_path, quick=True, only=("beta",), progress=False)
    assert (again.computed, drawn) == (0, [])
    assert f"{again.tasks} of them from an earlier run" in str(again)
    next(tmp_path.glob("*.png")).unlink()
    reproduce(tmp_path, quick=True, only=("beta",), progress=False)
    assert len(drawn) == 1
    assert found.page.read_bytes() == page
    found.page.unlink()
    reproduce(tmp_path, quick=True, only=("beta",), progress=False)
    assert len(drawn) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("experiment", ALL, ids=lambda e: e.name)
def test_every_experiment_reports(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALLER:
        monkeypatch.setattr(module, name, value)
    found = Ledger(tmp_path, experiment, experiment.tasks(True))
    sweep([found], Crew(Contrary(0, 1), 1))
    again = reproduced(tmp_path, experiment)
    page = again.read_text()
    assert "NOT KEPT" not in page
    assert "EXCEEDED" not in page
    assert "DID NOT" not in page
    figures = re.findall(r'href="([a-z_A-Z0-9]+\.(?:png|pdf))"', page)
    assert {name[-4:] for name in figures} == {".png", ".pdf"}
    assert all((tmp_path / name).stat().st_size > 5000 for name in figures)
    for name in figures[1::2]:  # inches of 72 points
        (width,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", (tmp_path / name).read_bytes())
        assert float(width) <= 72 * 3.5
    assert len(re.findall(r"<table>", page)) >= 1
    for figure in experiment.figures(Rows(found.rows())).values():
        assert labels(figure) >= 2


def labels(figure: Figure) -> int:
    """The fewest labels that any axis has."""
    figure.draw_without_rendering()
    counts = []
    shown = (axes for axes in figure.axes if axes.get_label() != "<colorbar>")
    for axis in (axis for axes in shown for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        found = [*axis.get_ticklabels(minor=False), *axis.get_ticklabels(minor=True)]
        places = [*axis.get_ticklocs(minor=False), *axis.get_ticklocs(minor=True)]
        counts.append(sum(low <= at <= high and bool(t.get_text()) for at, t in zip(places, found, strict=True)))
    return min(counts)


@given(low=st.floats(-9, 9), decades=st.floats(0.01, 12))
def test_every_logarithmic_axis_has_two_labels(low: float, decades: float) -> None:
    drawn = Figures()
    with drawn.panel("a", "", "", "", ticks=[1.0, 4.0]) as axes:
        axes.plot([1, 4], [10**low, 10 ** (low + decades)])
    assert labels(drawn["a"]) >= 2


def reproduced(folder: Path, experiment: Experiment) -> Path:
    """The report on results that are there already: nothing is computed, and no worker is started."""
    with results_folder(folder.with_name("stamped")):
        (folder / "versions.json").write_bytes((folder.with_name("stamped") / "versions.json").read_bytes())
    found = reproduce(folder, quick=True, only=[experiment.name])
    assert found.computed == 0
    return found.page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "a & b"
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SMALLER:
            patch.setattr(module, name, value)
        folder.mkdir()
        found = Ledger(folder, named("sequences"), sequences.tasks(True))
        sweep([found], Crew(Contrary(0, 1), 1))
        return reproduced(folder, named("sequences"))


def test_report_stands_alone(report: Path) -> None:
    text = report.read_text()
    assert not re.search(r"https?:|<script|<link|@import", re.sub(r"base64,[^\"]+", "", text))
    assert "anchorhead reproduce --quick --only sequences -o" in text
    assert "a &amp; b" in text
    assert f"torch {torch.__version__}" in text
    assert f"anchorhead {ah.__version__}" in text


@pytest.mark.heavy
def test_report_reads_on_a_phone_and_prints(browser: Any, report: Path) -> None:
    shape = {"width": 375, "height": 812, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    browser.get(report.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    widths = browser.execute_script("return [...document.images].map(i => [i.naturalWidth, i.clientWidth])")
    assert widths
    assert all(natural > 0 and 280 <= shown <= 375 for natural, shown in widths)
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_task_reads_like_a_sentence() -> None:
    assert str(Task({"how": "trained", "p": 60}, 7)) == "how trained, p 60, seed 7"


def test_the_command_names_every_experiment() -> None:
    text = (Path(__file__).parents[1] / "src/anchorhead/cli.py").read_text(encoding="utf-8")
    named_there = re.search(r"may be given several times: ([^.]*)\.", text)
    assert named_there is not None
    assert re.findall(r"[a-z_]+", named_there[1]) == [experiment.name for experiment in ALL]
