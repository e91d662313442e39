/* The four charts. `computeCurves` is what a head and a β give; `drawCurves` draws that, and `drawQuery`
 * what changes with the query.
 */

const MOST_LINES = 16; // keys whose values are drawn as lines
const LISTED = 5; // heaviest keys in the table
const COLUMNS = 400; // of the attention map
const LEAST_ERROR = 1e-17; // what the error axis shows at most

/** Points of an entry: the grid, computed as Python does, and all points with those close to kinks, in order. */
function entryPoints(entry) {
  const [low, high] = entry.window, steps = entry.f.length - 1;
  const grid = entry.f.map((_, i) => low + ((high - low) * i) / steps);
  const all = grid.map((x, i) => [x, entry.f[i]]).concat(entry.close.x.map((x, i) => [x, entry.close.f[i]]));
  all.sort((a, b) => a[0] - b[0]);
  return { grid, x: all.map((p) => p[0]), f: all.map((p) => p[1]) };
}

/** Head, error and bound at all points, the largest error in the domain, and the map's columns in key order. */
function computeCurves(entry, points, head, factor) {
  const values = points.x.map((x) => headValue(head, x, factor));
  const errors = values.map((value, i) => Math.abs(value - points.f[i]));
  const bounds = points.x.map((x) => claimedBound(head, x));
  const inside = points.x.map((x) => inDomain(head, x));
  let worst = 0;
  errors.forEach((error, i) => {
    if (inside[i] && (!inside[worst] || error > errors[worst])) worst = i;
  });
  const order = keyOrder(head), [low, high] = entry.window, columns = [];
  for (let i = 0; i < COLUMNS; i++) {
    const weights = headWeights(head, low + ((high - low) * (i + 0.5)) / COLUMNS, factor);
    columns.push(order.map((k) => weights[k]));
  }
  return { values, errors, bounds, order, columns, largest: errors[worst], at: points.x[worst] };
}

const charts = {};

function makeCharts() {
  for (const name of ["function", "weights", "error", "map"]) charts[name] = makeChart(`plot-${name}`);
  charts.keyLines = draw(charts.function.curves, "g");
  charts.target = draw(charts.function.curves, "path", { class: "target" });
  charts.head = draw(charts.function.curves, "path", { class: "head" });
  charts.error.line = draw(charts.error.curves, "path", { class: "error" });
  charts.error.bound = draw(charts.error.curves, "path", { class: "bound" });
  for (const name of ["function", "error", "map"])
    charts[name].query = draw(charts[name].front, "line", { class: "query" });
  charts.dots = draw(charts.function.front, "g", { "clip-path": "url(#plot-function-clip)" });
  charts.error.dot = draw(charts.error.front, "circle", { class: "dot", r: 4.5 });
  const handle = { class: "handle", r: 8, tabindex: 0, role: "slider", "aria-label": "Query" };
  charts.handle = draw(charts.function.front, "circle", handle);
}

/** The range of the function, and of the head as far as that does not dwarf the function. */
function valueRange(f, values) {
  const least = Math.min(...f), most = Math.max(...f), span = most - least || Math.abs(most) || 1, room = 0.5 * span;
  const low = Math.max(Math.min(least, ...values), least - room);
  const high = Math.min(Math.max(most, ...values), most + room);
  return [low - 0.08 * span, high + 0.08 * span];
}

function drawCurves(view) {
  const { entry, points, head, curves } = view;
  drawFunction(entry, points, head, curves);
  drawError(entry, points, curves, view.compiled);
  drawMap(entry, head, curves);
}

function drawMap(entry, head, curves) {
  const map = charts.map, count = head.keys, [low, high] = entry.window;
  setFrame(map, entry.window, [0.5, count + 0.5]);
  drawAxes(map, entry.variable, { bare: true, yTicks: keyTicks(count, 8) });
  draw(map.back, "text", { class: "name end", x: map.frame.left - 7, y: map.frame.bottom + 32 }, "key");
  paintMap(map.box.querySelector("canvas"), curves.columns, map.frame);
  map.svg.setAttribute("aria-label", `Attention weights of ${count} keys for ${entry.variable} from ${low} to ${high}`);
}

/** Keys to number on an axis, at most so many. */
function keyTicks(count, most) {
  const every = Math.ceil(count / most);
  return Array.from({ length: Math.ceil(count / every) }, (_, i) => 1 + i * every);
}

function drawFunction(entry, points, head, curves) {
  const frame = setFrame(charts.function, entry.window, valueRange(points.f, curves.values));
  drawAxes(charts.function, entry.variable);
  drawOutside(charts.function, head.claim.domain);
  charts.target.setAttribute("d", pathThrough(points.x, points.f, frame));
  charts.head.setAttribute("d", pathThrough(points.x, curves.values, frame));
  charts.keyLines.replaceChildren();
  if (head.keys > MOST_LINES) return;
  curves.order.forEach((k) => {
    const d = pathThrough(entry.window, entry.window.map((x) => keyValue(head, k, x)), frame);
    draw(charts.keyLines, "path", { class: "key", d });
  });
}

/** The error axis: from well below the bound, or the error, to above both. */
function errorRange(curves) {
  const bounds = curves.bounds.filter((b) => b !== null);
  const top = Math.max(curves.largest, ...bounds, LEAST_ERROR * 100);
  const typical = [...curves.errors].sort((a, b) => a - b)[Math.floor(curves.errors.length / 10)];
  const low = Math.max(LEAST_ERROR, Math.min(typical, Math.min(...bounds) / 30, top / 1e3));
  return [Math.pow(10, Math.floor(Math.log10(low))), Math.pow(10, Math.ceil(Math.log10(top * 1.5)))];
}

function drawError(entry, points, curves, compiled) {
  const chart = charts.error, range = errorRange(curves), frame = setFrame(chart, entry.window, range, true);
  drawAxes(chart, entry.variable);
  drawOutside(chart, curves.domain);
  chart.line.setAttribute("d", pathThrough(points.x, curves.errors.map((e) => Math.max(e, range[0] / 10)), frame));
  chart.bound.setAttribute("d", pathThrough(points.x, curves.bounds, frame));
  chart.bound.classList.toggle("void", !compiled);
  chart.svg.setAttribute("aria-label", `Error on a logarithmic axis; the largest is ${numberText(curves.largest, 3)}`);
}

function drawQuery(view) {
  const { entry, head, curves, factor, x, f } = view;
  for (const name of ["function", "error", "map"]) {
    const { frame, query } = charts[name], at = frame.x(x);
    const ends = { x1: at, x2: at, y1: frame.top, y2: frame.bottom };
    for (const [key, value] of Object.entries(ends)) query.setAttribute(key, value);
  }
  const weights = headWeights(head, x, factor), answer = headValue(head, x, factor), frame = charts.function.frame;
  drawKeyDots(head, curves.order, weights, x);
  const inside = (y, { top, bottom }) => Math.min(bottom, Math.max(top, y));
  charts.handle.setAttribute("cx", frame.x(x));
  charts.handle.setAttribute("cy", inside(frame.y(answer), frame));
  const error = charts.error.frame, gap = Math.abs(answer - f);
  charts.error.dot.setAttribute("cx", error.x(x));
  charts.error.dot.setAttribute("cy", inside(error.y(Math.max(gap, error.yRange[0])), error));
  drawWeights(head, curves.order, weights);
  listKeys(head, curves.order, weights, x, factor, answer);
  showResult(entry, x, f, answer);
}

/** Lines and dots of keys: the heavier a key at the query, the stronger. */
function drawKeyDots(head, order, weights, x) {
  const frame = charts.function.frame, cx = frame.x(x);
  charts.dots.replaceChildren();
  [...charts.keyLines.children].forEach((line, i) => {
    line.style.opacity = 0.18 + 0.82 * Math.sqrt(weights[order[i]]);
  });
  weights.forEach((weight, k) => {
    const at = { class: "share", cx, cy: frame.y(keyValue(head, k, x)), r: (1.5 + 6 * Math.sqrt(weight)).toFixed(2) };
    if (weight >= 0.002) draw(charts.dots, "circle", at);
  });
}

function drawWeights(head, order, weights) {
  const chart = charts.weights, count = head.keys;
  const frame = setFrame(chart, [0.5, count + 0.5], [0, 1.25]);
  drawAxes(chart, "key", { xTicks: keyTicks(count, Math.max(4, Math.floor((frame.right - frame.left) / 26))), yTicks: [0, 0.5, 1] });
  chart.curves.replaceChildren();
  chart.front.replaceChildren();
  const step = (frame.right - frame.left) / count, width = Math.max(1.5, Math.min(46, step * 0.72));
  order.forEach((k, i) => {
    const top = frame.y(weights[k]), centre = frame.x(i + 1);
    const height = Math.max(0, frame.bottom - top), rx = Math.min(3, width / 4);
    draw(chart.curves, "rect", { class: "bar", x: centre - width / 2, y: top, width, height, rx });
    const percent = `${(100 * weights[k]).toFixed(weights[k] > 0.9995 ? 0 : 1)}%`;
    if (step > 40 && weights[k] >= 0.005)
      draw(chart.front, "text", { class: "tick middle", x: centre, y: top - 5 }, percent);
  });
  const most = Math.max(...weights), heaviest = order.indexOf(weights.indexOf(most)) + 1;
  const said = `Weights of ${count} keys; the heaviest is key ${heaviest} with ${numberText(most, 3)}`;
  chart.svg.setAttribute("aria-label", said);
}

/** The heaviest keys with score, weight, value and what they add; and the sum over all. */
function listKeys(head, order, weights, x, factor, answer) {
  const scores = headScores(head, x, factor), table = document.getElementById("keys");
  const named = order.map((k, i) => ({ k, name: i + 1 }));
  named.sort((a, b) => scores[b.k] - scores[a.k] || a.name - b.name); // by score: weights may be zero
  const heavy = named.slice(0, LISTED).sort((a, b) => a.name - b.name);
  const largest = Math.max(...weights.map((weight, k) => Math.abs(weight * keyValue(head, k, x))));
  const cancels = largest > 0 ? Math.floor(Math.log10(largest / Math.abs(answer))) : 0; // so many digits, in the sum
  const digits = Math.min(15, 4 + Math.max(0, cancels));
  const rows = heavy.map(({ k, name }) => {
    const value = keyValue(head, k, x), adds = numberText(weights[k] * value, digits);
    return [String(name), numberText(scores[k]), numberText(weights[k], 3), numberText(value), adds];
  });
  while (rows.length < LISTED) rows.push(["\u00a0"]); // as high for every head
  const last = head.keys > LISTED ? `all ${head.keys}` : "sum";
  table.tBodies[0].replaceChildren(...rows.map(tableRow));
  table.tFoot.replaceChildren(tableRow([last, "", "1", "", numberText(answer)]));
}

function tableRow(cells) {
  const row = document.createElement("tr");
  for (const cell of cells) row.insertCell().textContent = cell;
  return row;
}

function showResult(entry, x, f, answer) {
  const v = entry.variable, list = document.getElementById("result");
  const said = [[`f(${v})`, longText(f)], [`head(${v})`, longText(answer)], ["difference", numberText(answer - f, 3)]];
  list.replaceChildren(...said.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.appendChild(document.createElement("dt")).textContent = name;
    pair.appendChild(document.createElement("dd")).textContent = value;
    return pair;
  }));
}
