"""The interactive page: what it holds, what it refuses, and how it behaves in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anchorhead as ah
from anchorhead.compiler.target import read_target
from anchorhead.explore import gallery
from anchorhead.explore.gallery import formula_entry
from anchorhead.explore.numbers import grid
from anchorhead.explore.page import page_entries, page_text, write_page
from anchorhead.explore.presets import PRESETS, preset_entries
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule

WHERE = (0.0, 0.001, 0.02, 0.13, 0.31, 0.5, 0.501, 0.77, 0.96, 1.0)
"""Places in a window, as shares of it."""


@pytest.fixture(scope="module")
def few_heads() -> Iterator[None]:
    """A small gallery, so that pages of formulas and files take a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "SIZES", (2, 4))
        patch.setattr(gallery, "PAPER_SIZES", (4, 8))
        patch.setattr(gallery, "TOLERANCES", (1e-1, 1e-3))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explore")


@pytest.fixture(scope="module")
def presets_page(folder: Path) -> Path:
    write_page(None, folder / "presets.html")
    return folder / "presets.html"


@pytest.fixture(scope="module")
def formula_page(folder: Path, few_heads: None) -> Path:
    write_page("sin(3*x)", folder / "formula.html", domain=(-1, 1))
    return folder / "formula.html"


@pytest.fixture(scope="module")
def saved_head(folder: Path) -> Path:
    ah.compile("gelu(x)", tol=1e-3).save(folder / "gelu.safetensors")
    return folder / "gelu.safetensors"


@pytest.fixture(scope="module")
def saved_network(folder: Path) -> Path:
    ah.compile("x*y + exp(x)", (-1, 1), tol=1e-2).save(folder / "network.safetensors")
    return folder / "network.safetensors"


def attention(head: dict[str, Any]) -> HeadModule:
    """The head that an entry's numbers describe."""
    return HeadModule(Head.of(**{name: head[name] for name in NUMBERS}, horner=False, sizes=head["sizes"]))


# What the page holds


def test_shipped_presets_keep_their_bounds() -> None:
    """Every stored head errs by no more than it claims, at points of its domain that nobody chose."""
    draw = np.random.default_rng(0)
    for (formula, domain), entry in zip(PRESETS, preset_entries(), strict=True):
        f = read_target(formula, domain).function()
        for head in entry["heads"]:
            ends = [e if e is not None else s * 50.0 for e, s in zip(head["claim"]["domain"], (-1, 1), strict=True)]
            x = np.concatenate([draw.uniform(*ends, 500), draw.uniform(*ends, 100) * 1e-6])
            x = x[(x >= ends[0]) & (x <= ends[1])]
            scale = 1 if None not in head["claim"]["domain"] else 1 + np.abs(x)
            allowed = head["claim"]["approximation"] + head["claim"]["rounding"] * scale
            error = np.abs(attention(head)(torch.as_tensor(x)).numpy() - f(x))
            assert (error <= allowed).all(), (formula, head["method"], head["size"])


@pytest.mark.parametrize(("formula", "method", "size"), [("sin(3*x)", "nearest", 8), ("relu(x)", "kinked", 0.01)])
def test_shipped_presets_are_what_the_compiler_finds(formula: str, method: str, size: float) -> None:
    """A failure means that the compiler finds other heads than when presets.json was written: the default page would
    show heads that `ah.compile` no longer gives. Run `python -m anchorhead.explore.presets`, a few minutes, and
    commit the file."""
    (entry,) = (e for e in preset_entries() if e["name"] == formula)
    (stored,) = (h for h in entry["heads"] if (h["method"], h["size"]) == (method, size))
    wanted: dict[str, Any] = {"tol": size} if stored["by"] == "tol" else {"keys": int(size)}
    model = ah.compile(formula, dict(PRESETS)[formula], method=method, **wanted)
    assert model.certificate.approximation == pytest.approx(stored["claim"]["approximation"], rel=1e-9)
    for name in NUMBERS:
        assert getattr(model.head, name).tolist() == pytest.approx(stored[name], rel=1e-9)


def test_presets_cover_every_method_and_stay_small() -> None:
    entries = preset_entries()
    assert [entry["name"] for entry in entries] == [formula for formula, _ in PRESETS]
    assert {h["method"] for e in entries for h in e["heads"]} == {"gated", "smooth", "kinked", "nearest"}
    assert all(h["claim"]["level"] == "proved" for e in entries for h in e["heads"])
    assert len(page_text(entries).encode()) < 1_000_000


def test_entry_of_a_formula(few_heads: None) -> None:
    said: list[str] = []
    entry = formula_entry("relu(x)", progress=said.append)
    assert {h["method"] for h in entry["heads"]} == {"smooth", "kinked", "nearest"}
    assert [h["size"] for h in entry["heads"] if h["method"] == "kinked"] == [0.1, 0.001]
    assert [h["claim"]["domain"] for h in entry["heads"] if h["method"] == "nearest"] == [[-4, 4]] * 2
    assert any("gated is not among the heads" in note for note in entry["notes"])
    assert "relu(x): nearest, 8 keys" in said
    assert entry["f"] == np.maximum(grid(-8, 8), 0).tolist()


def test_formula_that_no_head_follows_to_infinity_gets_a_window(few_heads: None) -> None:
    entry = formula_entry("x**2")
    assert entry["domain"] == [-4, 4]
    assert entry["notes"][0].startswith("This page takes [−4, 4]")
    assert "not seen to approach a line" in entry["notes"][0]


def test_heads_of_a_network_are_entries(saved_network: Path) -> None:
    entries = page_entries(saved_network)
    assert {entry["node"] for entry in entries} == {"x*y", "exp(x)"}
    assert {entry["node"] for entry in entries if "they are multiplied by v" in entry["notes"][-1]} == {"x*y"}
    for entry in entries:
        (head,) = entry["heads"]
        x = torch.as_tensor(grid(*entry["window"]))
        error = (attention(head)(x) - torch.tensor(entry["f"], dtype=torch.float64)).abs().max().item()
        assert error <= head["claim"]["approximation"] + head["claim"]["rounding"]


def test_maxima_of_a_network_are_entries(folder: Path) -> None:
    model = ah.compile("max(x, y, z) + max(x, -y)", (-1, 1), tol=1e-3)
    model.save(folder / "maxima.safetensors")
    entries = page_entries(folder / "maxima.safetensors")
    assert {entry["name"] for entry in entries} == {"relu(u)"}
    assert {entry["heads"][0]["keys"] for entry in entries} == {2, 3}
    for entry in entries:
        (head,) = entry["heads"]
        x = torch.as_tensor([*grid(*entry["window"]), *entry["close"]["x"]])
        exact = torch.tensor([*entry["f"], *entry["close"]["f"]], dtype=torch.float64)
        error = (attention(head)(x) - exact).abs().max().item()
        assert 0 < error <= head["claim"]["approximation"] + head["claim"]["rounding"] < 1e-3
    assert "anchorhead" in page_text(entries)


# What the page refuses


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("sin(x*y)", "has the variables x, y"),
        ("missing.safetensors", "does not exist; save a model"),
        (Path("missing"), "does not exist"),
        ("floor(x)", "cannot be approximated uniformly"),
        ("log(x)", "Choose a domain"),
        ("sin(", "does not parse"),
        ("__import__('os')", "__import__"),
    ],
)
def test_bad_targets_are_refused_with_a_sentence(target: Any, sentence: str, folder: Path) -> None:
    with pytest.raises(ah.AnchorheadError, match=re.escape(sentence)):
        write_page(target, folder / "refused.html")
    assert not (folder / "refused.html").exists()


def test_sampled_models_are_refused(folder: Path) -> None:
    ah.compile(lambda x, y: x + y, (0, 1), tol=0.5, lipschitz=1.5).save(folder / "grid.safetensors")
    with pytest.raises(ah.InputError, match="sampled over a grid"):
        write_page(folder / "grid.safetensors", folder / "refused.html")


def test_what_the_page_cannot_draw_is_refused_for_what_it_is(folder: Path) -> None:
    for name, model, said in (
        ("recall", ah.gallery.load("recall").model, r"\(attend\) have keys that depend on the input"),
        ("affine", ah.compile("x + 2*y", (-1, 1), tol=1e-3), "it is affine"),
        ("mapped", ah.compile("sin(x)", (-1, 1), tol=1e-3, row_map=ah.row_maps.ReLU()), "under the row map relu"),
    ):
        model.save(folder / f"{name}.safetensors")
        with pytest.raises(ah.InputError, match=said):
            write_page(folder / f"{name}.safetensors", folder / "refused.html")


def test_domains_that_cannot_apply_are_refused(folder: Path, saved_head: Path) -> None:
    with pytest.raises(ah.InputError, match="presets have domains of their own"):
        write_page(None, folder / "refused.html", domain=(-1, 1))
    with pytest.raises(ah.InputError, match="leave the domain out"):
        write_page(saved_head, folder / "refused.html", domain=(-1, 1))


def test_places_that_cannot_be_written_are_refused_before_compiling(folder: Path) -> None:
    said: list[str] = []
    for path in (folder, folder / "nowhere" / "page.html"):
        with pytest.raises(ah.FileError, match="cannot be written"):
            write_page("tanh(x)", path, progress=said.append)
    assert not said


def test_texts_are_data_and_never_markup() -> None:
    evil = "</script><script>alert(1)</script><!-- {{script}} \u2028 &"
    entry = preset_entries()[6] | {"name": evil, "notes": [evil], "node": evil}
    text = page_text([entry])
    assert text.count("</script>") == 2
    assert "alert(1)</script>" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])[0]["name"] == evil


def test_page_asks_for_nothing_from_anywhere() -> None:
    text = page_text(preset_entries())
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]|@import|<link(?! rel=\"icon\" href=\"data:,\")|\bsrc=", text)
    assert "default-src 'none'" in text


# How the page behaves in a browser


class Page:
    """A page in the browser, and what a person can do with it."""

    def __init__(self, browser: Any, path: Path, size: tuple[int, int] = (1280, 900), scheme: str = "light") -> None:
        self.browser = browser
        command = browser.execute_cdp_cmd
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
        command("Emulation.setDeviceMetricsOverride", shape)
        command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(path.as_uri())
        self.wait("return !!window.anchorhead")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 20, poll_frequency=0.02).until(lambda _: self.run(script, *arguments))

    def element(self, css: str) -> Any:
        return self.browser.find_element("css selector", css)

    def choose(self, **changes: Any) -> None:
        self.run("anchorhead.set(arguments[0])", changes)

    def press(self, css: str, *keys: str) -> None:
        self.element(css).send_keys(*keys)

    @property
    def state(self) -> dict[str, Any]:
        return self.run("return anchorhead.state")

    @property
    def curve(self) -> str:
        return self.run("return document.querySelector('path.head').getAttribute('d')")

    @property
    def claim(self) -> str:
        return self.element("#claim").text


def assert_same_as_python(page: Page, head: HeadModule) -> None:
    """Values and weights of the chosen head at places all over the window, to twelve digits."""
    low, high = page.run("const e = anchorhead.functions.find(e => e.heads.includes(anchorhead.head)); return e.window")
    x = torch.tensor([low + (high - low) * t for t in WHERE], dtype=torch.float64)
    values = page.run("return arguments[0].map(anchorhead.evaluate)", x.tolist())
    weights = page.run("return arguments[0].map(anchorhead.weights)", x.tolist())
    assert values == pytest.approx(head(x).double().tolist(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(weights, head.literal().weights(x).double().numpy(), rtol=0, atol=1e-11)


@pytest.mark.heavy
def test_loads_without_errors_or_requests(
    browser: Any, presets_page: Path, formula_page: Path, saved_head: Path, saved_network: Path, few_heads: None
) -> None:
    for saved in (saved_head, saved_network):
        write_page(str(saved), saved.with_suffix(".html"))
    for path in (presets_page, formula_page, saved_head.with_suffix(".html"), saved_network.with_suffix(".html")):
        page = Page(browser, path)
        names = page.run("return anchorhead.functions.map(e => e.of || e.name)")
        for i, name in enumerate(names):
            page.choose(function=i)
            assert page.element("h1").text == f"{name} as attention"
            assert page.curve.startswith("M")
            added = [float(row.split()[-1].replace("−", "-")) for row in page.element("#keys").text.splitlines()[1:]
                     if "·" not in row]  # fmt: skip
            if len(added) == 3:  # two keys and their sum, however they cancel
                assert added[0] + added[1] == pytest.approx(added[2], rel=1e-2, abs=1e-12)
        assert page.run("return performance.getEntriesByType('resource').length") == 0
        assert browser.get_log("browser") == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "method", "size"),
    [
        ("gelu(x)", "gated", 8),
        ("1/(1 + 25*x**2)", "smooth", 8),
        ("clip(x, -1, 1)", "kinked", 1e-3),
        ("sin(3*x)", "nearest", 16),
    ],
)
def test_presets_compute_what_python_computes(
    browser: Any, presets_page: Path, name: str, method: str, size: float
) -> None:
    page = Page(browser, presets_page)
    page.choose(function=name)
    page.choose(method=method)
    page.choose(size=size)
    assert (page.state["method"], page.state["size"]) == (method, size)
    assert_same_as_python(page, attention(page.run("return anchorhead.head")))


@pytest.mark.heavy
def test_formulas_and_files_compute_what_python_computes(
    browser: Any, formula_page: Path, saved_head: Path, few_heads: None
) -> None:
    page = Page(browser, formula_page)
    for method, keys in (("gated", 4), ("smooth", 4), ("nearest", 8)):
        page.choose(method=method)
        page.choose(size=keys)
        assert_same_as_python(page, ah.compile("sin(3*x)", (-1, 1), method=method, keys=keys).head)
    write_page(saved_head, saved_head.with_suffix(".html"))
    page = Page(browser, saved_head.with_suffix(".html"))
    assert page.state["method"] == "saved"
    assert_same_as_python(page, ah.load(saved_head).head)


def test_pages_of_theorems_say_what_is_drawn_and_where_its_bound_is_from(folder: Path) -> None:
    ones, zeros = torch.ones(4, 2, dtype=torch.float64), [0.0] * 4
    for name, model, how, title in (
        ("ramp", ah.theorems.single_head(ones, zeros, -1, 2, anchors=7), "proved on paper", "<title>clip(u, -1, 2)"),
        ("silent", ah.theorems.multi_head(ones, zeros, -1, 2, heads=3), "how far apart", "<title>"),
        ("grid", ah.theorems.two_layer("x1*x2", 1, 2, 3), "proved on paper", "<title>one ramp of layer 1 of two_layer"),
    ):
        model.save(folder / f"{name}.safetensors")
        page = page_text(page_entries(folder / f"{name}.safetensors"))
        assert how in page
        assert title in page
        assert "ball arithmetic before" not in page
        assert name != "grid" or "a look-up of 9 grid points, is of all coordinates and is not drawn" in page


@pytest.mark.heavy
def test_networks_of_theorems_are_drawn_as_they_run(browser: Any, folder: Path) -> None:
    weights, bias = torch.ones(4, 2, dtype=torch.float64), [0.0] * 4
    made = {
        "single": ah.theorems.single_head(weights, bias, -1, 2, anchors=7),
        "multi": ah.theorems.multi_head(weights, bias, -1, 2, heads=3),
        "grid": ah.theorems.two_layer("x1*x2", tokens=1, features=2, levels=3),
        "prompts": ah.in_context.universal(lambda p, w: w @ p[:, 0], {"z": (0, 1)}, 3, 2, lipschitz=1.0),
    }
    for name, model in made.items():
        model.save(folder / f"{name}.safetensors")
        write_page(folder / f"{name}.safetensors", folder / f"{name}.html")
        page = Page(browser, folder / f"{name}.html")
        for i, entry in enumerate(page_entries(folder / f"{name}.safetensors")):
            page.choose(function=i)
            assert page.element("h1").text == f"{entry['name']} as attention"
            assert page.curve.startswith("M")
            assert page.claim.startswith("theorem" if name in ("single", "grid") else "trivial")
            assert_same_as_python(page, attention(entry["heads"][0]))
        assert browser.get_log("browser") == []


@pytest.mark.heavy
def test_sliders_change_what_is_drawn(browser: Any, presets_page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Page(browser, presets_page)
    for slider, looked_at in (
        ("beta", "path.head"),
        ("size", "path.head"),
        ("query", "circle.handle"),
        ("beta", "path.error"),
        ("size", "#keys"),
        ("query", "#result"),
    ):
        shown = "return document.querySelector(arguments[0]).outerHTML"
        before, said = page.run(shown, looked_at), page.element(f".control:has(#{slider}) output").text
        page.press(f"#{slider}", Keys.ARROW_LEFT)
        assert page.run(shown, looked_at) != before
        assert page.element(f".control:has(#{slider}) output").text != said
    assert page.state["keys"] == 4
    assert page.state["beta"] == pytest.approx(10**-0.1)


@pytest.mark.heavy
def test_query_follows_keys_and_pointer(browser: Any, presets_page: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = Page(browser, presets_page)
    handle = page.element("circle.handle")
    page.run("arguments[0].focus()", handle)
    before = page.state["query"]
    for key, steps in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_LEFT, 0), (Keys.PAGE_UP, 40)):
        ActionChains(browser, duration=10).send_keys(key).perform()
        assert page.state["query"] == pytest.approx(before + 0.02 * steps)
    assert handle.get_attribute("aria-valuenow") == str(page.state["query"])
    assert handle.get_attribute("role") == "slider"
    ActionChains(browser, duration=10).send_keys(Keys.HOME).perform()
    assert page.state["query"] == -8
    for chart in ("function", "error", "map"):
        plot = page.element(f"#plot-{chart} svg")
        page.run("arguments[0].scrollIntoView({block: 'center'})", plot)
        drag = ActionChains(browser, duration=10).move_to_element(plot).click_and_hold()
        drag.move_by_offset(90, 0).move_by_offset(30, 0).release().perform()
        right = page.state["query"]
        assert 2 < right < 6
        drag = ActionChains(browser, duration=10).move_to_element(plot).click_and_hold()
        drag.move_by_offset(90, 0).move_by_offset(-150, 0).release().move_by_offset(100, 0).perform()
        assert page.state["query"] < 0
        assert page.run("return document.activeElement.getAttribute('role')") == "slider"


@pytest.mark.heavy
def test_switching_to_the_papers_head(browser: Any, presets_page: Path) -> None:
    page = Page(browser, presets_page)
    before, keys = page.curve, page.state["keys"]
    page.element("#methods input[value=nearest] + span").click()
    assert page.state["method"] == "nearest"
    assert page.state["keys"] in (4, 8)
    assert page.state["keys"] != keys
    assert page.curve != before
    assert len(page.browser.find_elements("css selector", "#plot-weights rect.bar")) == page.state["keys"]
    assert "[−4, 4]" in page.element("#about").text
    assert "[−4, 4]" in page.claim
    assert len(page.browser.find_elements("css selector", "#plot-error rect.outside")) == 2


@pytest.mark.heavy
def test_only_what_is_proved_is_claimed(browser: Any, presets_page: Path) -> None:
    page = Page(browser, presets_page)
    page.choose(function="sin(3*x)", method="gated")
    page.choose(size=4)
    claim = page.run("return anchorhead.head.claim")
    proved = claim["approximation"] + claim["rounding"]
    assert page.claim.startswith("proved: |f − head| ≤ 3.")
    said = re.match(r"proved: \|f − head\| ≤ ([\d.]+)·10⁻⁷ for every x in \[−1, 1\], in float64\.", page.claim)
    assert said is not None
    assert proved <= float(said[1]) * 1e-7 < 1.01 * proved
    error = page.run("return anchorhead.error")
    assert error["largest"] <= error["bound"] == proved
    page.choose(beta=2)
    assert page.claim.startswith("nothing proved at this β")
    assert "≤" not in page.claim
    assert "void" in page.element("path.bound").get_attribute("class")
    assert page.run("return anchorhead.error.bound") is None
    page.element("#reset").click()
    assert page.claim.startswith("proved:")
    assert "void" not in page.element("path.bound").get_attribute("class")


@pytest.mark.heavy
def test_bounds_are_printed_rounded_up(browser: Any, presets_page: Path) -> None:
    page = Page(browser, presets_page)
    numbers = [
        1.0,
        0.1,
        0.0999999,
        9.991e-5,
        1.0001e-7,
        2.87e-06,
        123.4,
        0.001,
        3e-290,
        5.5511151231257827e-16,
        99999.0,
    ]
    printed = page.run("return arguments[0].map(boundText)", numbers)
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    for number, text in zip(numbers, printed, strict=True):
        value = float(re.sub(r"·10(.*)", lambda m: "e" + m[1].translate(raised), text))
        assert number <= value <= 1.011 * number, text


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_needs_no_sideways_scrolling(browser: Any, presets_page: Path, scheme: str) -> None:
    page = Page(browser, presets_page, (375, 812), scheme)
    for i in range(len(PRESETS)):
        page.choose(function=i)
        page.choose(method="nearest", size=64, beta=0.03)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert page.run("return [...document.querySelectorAll('.plot')].every(p => p.clientWidth > 250)")
    panel = page.element(".sliders").rect
    assert panel["height"] < 160
    assert page.run("return innerHeight - document.querySelector('.sliders').getBoundingClientRect().bottom") == 0


@pytest.mark.heavy
def test_long_formulas_wrap_on_a_phone(browser: Any, folder: Path) -> None:
    long = "+".join(f"sin({k}*x)" for k in range(40))
    (folder / "long.html").write_text(page_text([preset_entries()[6] | {"name": long, "notes": [long], "node": long}]))
    page = Page(browser, folder / "long.html", (375, 812))
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.heavy
def test_colours_follow_the_scheme(browser: Any, presets_page: Path) -> None:
    page = Page(browser, presets_page)
    look = """
      const canvas = document.querySelector('#plot-map canvas'), frame = charts.map.frame;
      const pixel = canvas.getContext('2d').getImageData(frame.right - 4, frame.top + 4, 1, 1).data;
      return [getComputedStyle(document.body).backgroundColor, [...pixel].slice(0, 3)];
    """
    light = page.run(look)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.wait("return getComputedStyle(document.body).backgroundColor !== arguments[0]", light[0])
    page.wait(f"return (() => {{{look}}})()[1].join() !== arguments[0].join()", light[1])
    dark = page.run(look)
    assert sum(light[1]) < 300 < sum(dark[1])  # full weight: dark on light, light on dark


@pytest.mark.heavy
def test_address_holds_the_view(browser: Any, presets_page: Path) -> None:
    page = Page(browser, presets_page)
    page.choose(function="relu(x)", size=0.01, beta=2, query=0.5)
    wanted = page.state
    page.wait("return location.hash.includes('relu')")
    address = page.run("return location.href")
    browser.get("about:blank")
    browser.get(address)
    page.wait("return !!window.anchorhead")
    assert page.state == wanted
    page.run("location.hash = 'function=nonsense&method=nothing&size=-3&beta=x&query='")
    page.wait("return !location.hash.includes('relu')")
    assert browser.get_log("browser") == []


def test_heads_of_a_saved_network_have_the_names_of_its_mechanism(tmp_path):
    model = ah.gallery.load("layer_norm").model
    model.save(tmp_path / "model.safetensors")
    shown = [entry["node"].split(" and ")[0] for entry in gallery.file_entries(tmp_path / "model.safetensors")]
    assert "rsqrt_0" in shown
    assert set(shown) <= {head.name for head in model.mechanism.heads if head.kind != "carry"}


@pytest.mark.parametrize("literal", [False, True])
def test_heads_of_a_network_are_drawn_with_the_numbers_of_a_cache(tmp_path, literal):
    pytest.importorskip("transformer_lens")
    options = {"evaluation": "literal"} if literal else {}
    domain = {"x": (0, 3), "y": (-1, 2), "z": (0, 1)}
    model = ah.compile("(x - y)**2 + 3*x*y + z*y/4 + sqrt(z)", domain, tol=1e-2, **options)
    model.save(tmp_path / "model.safetensors")
    hooked, mechanism = ah.to_hooked(model), model.literal_mechanism()
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    x = low + (high - low) * torch.rand(50, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, cache = hooked.run_with_cache(x)
    ran = mechanism.run(x)
    for entry in gallery.file_entries(tmp_path / "model.safetensors"):
        [numbers], name = entry["heads"], entry["node"].split(" and ")[0]
        head, shown = mechanism.head(name), attention(numbers)
        inputs = {n: x[..., k] for k, n in enumerate(mechanism.inputs)} | {n: v for (n, _), v in ran.written.items()}
        u = sum(float(c) * inputs[n] for n, c in head.reads["u"].terms.items()) + float(head.reads["u"].bias)
        layer, at = hooked.where(name)
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, at, :, : head.keys]
        assert torch.allclose(shown.weights(u).reshape(pattern.shape), pattern, atol=1e-6)
        v = 1.0 if head.kind == "apply" else inputs[next(iter(head.reads["v"].terms))]
        v = v if head.kind == "apply" else v * float(next(iter(head.reads["v"].terms.values())))
        drawn = shown(u) * v
        assert torch.allclose(drawn, hooked.written(cache, name), rtol=1e-6, atol=1e-6)
        claim, step = model.network.placed.claim, [step.label for step in model.circuit.steps].index(head.where)
        use = claim.wiring.uses[step]
        reach = [use.centre + use.radius * end for end in (claim.heads[use.head].low, claim.heads[use.head].high)]
        assert numbers["claim"]["domain"] == pytest.approx(reach, rel=1e-2)
        assert reach[0] <= head.proved_for[0]
        assert head.proved_for[1] <= reach[1]
        assert float((drawn - ran.written[name, layer]).abs().max()) <= 3.1 * sum(
            numbers["claim"][part] for part in ("approximation", "rounding")
        )


@pytest.mark.parametrize(("name", "said"), [("sorting", "All 10 heads"), ("digits", "All 12 heads"),
                                            ("distance", "2 of the 3 heads")])  # fmt: skip
def test_heads_are_counted_and_not_their_pictures(tmp_path, name, said):
    ah.gallery.load(name).model.save(tmp_path / "model.safetensors")
    assert gallery.file_entries(tmp_path / "model.safetensors")[0]["notes"][0].startswith(said)


def test_what_u_is_and_where_it_stays_is_said(tmp_path):
    ah.gallery.load("distance").model.save(tmp_path / "model.safetensors")
    square = gallery.file_entries(tmp_path / "model.safetensors")[0]
    assert "of (x1 - x2)**2 it is x1 - x2, in [−2, 2]" in square["notes"][1]
    assert square["heads"][0]["claim"]["domain"] == [-4, 4]


def test_of_changed_numbers_no_bound_is_on_the_page(tmp_path):
    for target in ("gelu(x)", "x*y"):
        model = ah.compile(target, (-1, 1), tol=1e-3)
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if name.endswith("constants")).mul_(1.3)
        model.save(tmp_path / "edited.safetensors")
        claim = page_entries(tmp_path / "edited.safetensors")[0]["heads"][0]["claim"]
        assert (claim["level"], claim["approximation"], claim["rounding"]) == ("unproved", None, None)


@pytest.mark.heavy
def test_a_page_of_changed_numbers_says_no_bound(browser: Any, folder: Path) -> None:
    model = ah.compile("x*y", (-1, 1), tol=1e-3)
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("constants")).mul_(1.3)
    model.save(folder / "edited.safetensors")
    write_page(folder / "edited.safetensors", folder / "edited.html")
    page = Page(browser, folder / "edited.html")
    assert page.claim.startswith("unproved: these numbers are not those that were proved, and no bound is known.")
    assert "≤" not in page.claim
    assert page.run("return anchorhead.error.bound") is None
    assert not page.element("#legend-bound").is_displayed()
    assert not page.element("path.bound").get_attribute("d")
    assert browser.get_log("browser") == []
