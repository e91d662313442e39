/* The page: what is chosen, the controls that choose it, and the address that remembers it.
 *
 * In the console, window.anchorhead is
 *   evaluate(x)   what the chosen head answers at x, at the chosen β
 *   weights(x)    its attention weights, in the order of head.slopes
 *   state         { function, method, size, keys, beta, query }: beta is the factor on all scores,
 *                 1 as compiled; size is the number of keys, or the tolerance of heads whose number of keys is fixed
 *   set(changes)  changes any of function (name or number), method, size, beta, query, and draws
 *   head          the numbers of the chosen head; functions: all that the page holds
 *   error         { largest, at, bound }: on the page's points; bound is null where nothing is proved
 */

const METHODS = {
  saved: ["as saved", "The head in the file, as it was saved"],
  gated: [
    "gated",
    "Each key’s value is a line, constant + gain·x, and softmax glides from line to line. The outermost lines can " +
      "follow asymptotes, so that a few keys can serve all of R.",
  ],
  smooth: [
    "smooth",
    "Each key’s value is a constant. A mild β blends neighbours all the time, and the constants are chosen " +
      "for the blend.",
  ],
  kinked: [
    "kinked",
    "One or more keys for each smooth piece, and steep gates that switch between pieces at the kinks. The steeper " +
      "the gates, the sharper the corner.",
  ],
  nearest: [
    "the paper’s",
    "A key for each part of the domain, its value the function there, and a β so large that softmax selects " +
      "the nearest: a staircase. Its error falls only like 1/keys.",
  ],
};

const QUERY_STEPS = {
  ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -40, PageUp: 40, Home: -1e6, End: 1e6,
};

const entries = JSON.parse(document.getElementById("data").textContent);
const chosen = { entry: 0, head: 0, log: 0, query: 0 };
const view = {};
const byId = (id) => document.getElementById(id);
const methodOf = (head) => (head.saved ? "saved" : head.method);
const headsOf = (entry, method) => entry.heads.map((_, i) => i).filter((i) => methodOf(entry.heads[i]) === method);

/** Everything that follows from the choice; curves only when the head or β changed. */
function refresh() {
  const entry = entries[chosen.entry], head = entry.heads[chosen.head], factor = Math.pow(10, chosen.log);
  if (view.entry !== entry) Object.assign(view, { entry, points: entryPoints(entry), head: null });
  if (view.head !== head || view.factor !== factor) {
    Object.assign(view, { head, factor, compiled: chosen.log === 0 });
    view.curves = computeCurves(entry, view.points, head, factor);
    view.curves.domain = head.claim.domain;
    drawCurves(view);
    showClaim();
  }
  view.x = view.points.grid[chosen.query];
  view.f = entry.f[chosen.query];
  drawQuery(view);
  showControls();
  remember();
}

/** What is proved of the head as chosen, and what was measured here. Nothing is claimed of another β. */
function showClaim() {
  const { entry, head, curves, compiled } = view, claim = head.claim, v = entry.variable;
  const where = intervalText(claim.domain), text = byId("claim"), level = document.createElement("b");
  const bounded = claim.domain.every((end) => end !== null), found = numberText(curves.largest, 3);
  const measured = `Largest at the points of this page: ${found}, at ${v} = ${numberText(curves.at)}.`;
  const bound = bounded
    ? boundText(claim.approximation + claim.rounding)
    : `${boundText(claim.approximation)} + ${boundText(claim.rounding)}·(1 + |${v}|)`;
  const known = claim.approximation !== null;
  level.textContent = compiled ? claim.level : "nothing proved";
  const rest = !known
    ? `: these numbers are not those that were proved, and no bound is known. ${measured}`
    : compiled
    ? `: |f − head| ≤ ${bound} for every ${v} in ${where}, in ${claim.dtype}. ${measured}`
    : ` at this β: the ${claim.level} bound is about the compiled one, and its line is grey. ${measured}`;
  text.replaceChildren(level, rest);
  text.classList.toggle("void", !compiled);
  byId("legend-bound").parentElement.hidden = !known;
  byId("legend-bound").textContent = compiled ? `${claim.level} bound` : "bound, of the compiled β only";
  byId("legend-bound").previousElementSibling.classList.toggle("void", !compiled);
}

function showControls() {
  const { entry, head, factor, compiled, x } = view, v = entry.variable;
  const sizes = headsOf(entry, methodOf(head)), query = byId("query"), size = byId("size"), handle = charts.handle;
  const where = `${v} = ${numberText(x)}`;
  query.max = entry.f.length - 1;
  query.value = chosen.query;
  query.setAttribute("aria-valuetext", where);
  byId("query-value").textContent = where;
  const [low, high] = entry.window;
  const said = { valuemin: low, valuemax: high, valuenow: x, valuetext: where };
  for (const [key, value] of Object.entries(said)) handle.setAttribute(`aria-${key}`, value);
  const shown = `× ${numberText(factor, 3)}`;
  byId("beta").value = chosen.log;
  byId("beta").setAttribute("aria-valuetext", compiled ? `${shown}, as compiled` : shown);
  byId("beta-value").textContent = shown;
  byId("beta-note").hidden = !compiled;
  byId("reset").disabled = compiled;
  size.max = sizes.length - 1;
  size.value = sizes.indexOf(chosen.head);
  size.disabled = sizes.length < 2;
  const keys = head.keys === 1 ? "1 key" : `${head.keys} keys`;
  const many = head.by === "tol" ? `${numberText(head.size)} (${keys})` : keys;
  byId("size-label").textContent = head.by === "tol" ? "Tolerance" : "Keys";
  byId("size-value").textContent = many;
  size.setAttribute("aria-valuetext", many);
}

/** Title, methods, notes: what changes with the function or the method. */
function showEntry() {
  const entry = entries[chosen.entry], head = entry.heads[chosen.head], method = methodOf(head);
  byId("title").textContent = document.title = `${entry.of || entry.name} as attention`;
  byId("legend-target").textContent = `f = ${entry.name} on ${intervalText(entry.domain).replace(/^R$/, "all of R")}`;
  const buttons = [...byId("functions").querySelectorAll("button")];
  buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === chosen.entry));
  const select = byId("functions").querySelector("select");
  if (select) select.value = chosen.entry;
  const names = Object.keys(METHODS).filter((name) => headsOf(entry, name).length);
  const legend = byId("methods").querySelector("legend");
  byId("methods").replaceChildren(legend, ...names.map((name) => methodChoice(name, name === method)));
  const own = head.saved ? `: ${head.method}, ${head.keys} keys${entry.node ? `, for ${entry.node}` : ""}.` : "";
  const inside = head.claim.domain, whole = inside.every((end, i) => end === entry.domain[i]);
  const narrow = ` These heads need a bounded domain, here ${intervalText(inside)}; outside they claim nothing.`;
  byId("about").textContent = METHODS[method][1] + own + (whole ? "" : narrow);
  byId("notes").replaceChildren(...entry.notes.map(noteText));
}

function noteText(text) {
  return Object.assign(document.createElement("p"), { className: "note", textContent: text });
}

function methodChoice(name, checked) {
  const label = document.createElement("label"), input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "method", value: name, checked });
  input.addEventListener("change", () => set({ method: name }));
  label.append(input, Object.assign(document.createElement("span"), { textContent: METHODS[name][0] }));
  return label;
}

/** A button for each function, or a list where there are many. */
function makeFunctions() {
  const nav = byId("functions");
  nav.hidden = entries.length < 2;
  const names = entries.map((entry) => (entry.node ? `${entry.node}: ${entry.name}` : entry.name));
  if (entries.length > 10) {
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Function");
    names.forEach((name, i) => select.add(new Option(name, i)));
    select.addEventListener("change", () => set({ function: Number(select.value) }));
    nav.append(select);
    return;
  }
  names.forEach((name, i) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.addEventListener("click", () => set({ function: i }));
    nav.append(button);
  });
}

/** The head of a method whose size is closest, by ratio. */
function closest(entry, method, size) {
  const away = (i) => Math.abs(Math.log(entry.heads[i].size / size));
  return headsOf(entry, method).reduce((a, b) => (away(b) < away(a) ? b : a));
}

function nearestGridPoint(entry, x) {
  const [low, high] = entry.window, steps = entry.f.length - 1;
  return Math.min(steps, Math.max(0, Math.round(((x - low) / (high - low)) * steps)));
}

/** Changes the choice; what is not known is left as it is. */
function set(changes) {
  const named = typeof changes.function === "string";
  const index = named ? entries.findIndex((e) => e.name === changes.function) : changes.function;
  let entry = entries[chosen.entry];
  if (entries[index] && entries[index] !== entry) {
    entry = entries[index];
    Object.assign(chosen, { entry: index, head: entry.start, query: startQuery(entry), log: 0 });
  }
  const before = entry.heads[chosen.head];
  if (headsOf(entry, changes.method).length) {
    const same = entry.heads[headsOf(entry, changes.method)[0]].by === before.by;
    chosen.head = same ? closest(entry, changes.method, before.size) : headsOf(entry, changes.method)[0];
  }
  if (changes.size > 0) chosen.head = closest(entry, methodOf(entry.heads[chosen.head]), changes.size);
  if (changes.beta > 0) {
    const log = Math.round(Math.log10(changes.beta) * 20) / 20; // the slider's steps
    chosen.log = Math.min(2, Math.max(-2, log));
  }
  if (Number.isFinite(changes.query)) chosen.query = nearestGridPoint(entry, changes.query);
  showEntry();
  refresh();
}

const startQuery = (entry) => Math.round(0.56 * (entry.f.length - 1));

function moveQuery(index) {
  chosen.query = Math.min(entries[chosen.entry].f.length - 1, Math.max(0, index));
  refresh();
}

function listen() {
  byId("query").addEventListener("input", (event) => moveQuery(Number(event.target.value)));
  byId("beta").addEventListener("input", (event) => { chosen.log = Number(event.target.value); refresh(); });
  byId("reset").addEventListener("click", () => { set({ beta: 1 }); byId("beta").focus(); });
  byId("size").addEventListener("input", (event) => {
    const entry = entries[chosen.entry];
    chosen.head = headsOf(entry, methodOf(entry.heads[chosen.head]))[Number(event.target.value)];
    refresh();
  });
  charts.handle.addEventListener("keydown", (event) => {
    if (!(event.key in QUERY_STEPS)) return;
    event.preventDefault();
    moveQuery(chosen.query + QUERY_STEPS[event.key] * (event.shiftKey ? 10 : 1));
  });
  for (const name of ["function", "error", "map"]) listenToDragging(charts[name]);
  const redraw = () => { view.head = null; refresh(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paintRamp(); redraw(); });
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(document.querySelector("main"));
  addEventListener("hashchange", recall);
}

/** The query follows the pointer across a chart. */
function listenToDragging(chart) {
  const follow = (event) => {
    const x = chart.frame.xAt(event.clientX - chart.svg.getBoundingClientRect().left);
    moveQuery(nearestGridPoint(entries[chosen.entry], x));
  };
  chart.svg.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    chart.svg.setPointerCapture(event.pointerId);
    follow(event);
  });
  chart.svg.addEventListener("pointermove", (event) => {
    if (chart.svg.hasPointerCapture(event.pointerId)) follow(event);
  });
  chart.svg.addEventListener("pointerup", () => charts.handle.focus({ preventScroll: true })); // arrow keys go on
}

function state() {
  const entry = entries[chosen.entry], head = entry.heads[chosen.head];
  const { size, keys } = head, beta = Math.pow(10, chosen.log), query = view.points.grid[chosen.query];
  return { function: entry.name, method: methodOf(head), size, keys, beta, query };
}

let waiting = 0;

/** The address holds the choice, so that a view can be shared; written once the hand rests. */
function remember() {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const { keys, ...rest } = state();
    for (const name of ["beta", "query"]) rest[name] = Number(rest[name].toPrecision(6));
    if (entries.filter((entry) => entry.name === rest.function).length > 1) rest.function = chosen.entry;
    history.replaceState(null, "", `#${new URLSearchParams(rest)}`);
  }, 250);
}

function recall() {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const name of ["size", "beta", "query"]) if (name in found) found[name] = Number(found[name]);
  const known = entries.some((entry) => entry.name === found.function);
  if (!known && /^\d+$/.test(found.function)) found.function = Number(found.function);
  set(found);
}

function paintRamp() {
  const canvas = byId("ramp"), context = canvas.getContext("2d"), colour = heatRamp();
  for (let i = 0; i < canvas.width; i++) {
    context.fillStyle = `rgb(${colour(i / (canvas.width - 1)).map(Math.round)})`;
    context.fillRect(i, 0, 1, 1);
  }
}

makeCharts();
makeFunctions();
paintRamp();
Object.assign(chosen, { head: entries[0].start, query: startQuery(entries[0]) });
listen();
recall();

window.anchorhead = {
  evaluate: (x) => headValue(view.head, x, view.factor),
  weights: (x) => [...headWeights(view.head, x, view.factor)],
  set,
  functions: entries,
  get state() { return state(); },
  get head() { return view.head; },
  get error() {
    const bounds = view.curves.bounds.filter((bound) => bound !== null);
    return { largest: view.curves.largest, at: view.curves.at, bound: view.compiled && bounds.length ? Math.max(...bounds) : null };
  },
};
