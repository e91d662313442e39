/* Drawing: an SVG of the element's own size in pixels, with axes, curves and layers that are replaced as wanted.
 * Colours come from the style sheet, so that they follow the colour scheme by themselves.
 */

const MARGIN = { left: 52, right: 12, top: 10, bottom: 36 };

/** A new SVG element inside `parent`, in the parent's own name space. */
function draw(parent, name, attributes = {}, text = null) {
  const element = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.appendChild(element);
  return element;
}

/** Layers of a chart, made once: what lies behind the curves, the curves (clipped), and what lies in front. */
function makeChart(id) {
  const box = document.getElementById(id), svg = box.querySelector("svg");
  const clip = draw(draw(draw(svg, "defs"), "clipPath", { id: `${id}-clip` }), "rect");
  const back = draw(svg, "g"), curves = draw(svg, "g", { "clip-path": `url(#${id}-clip)` }), front = draw(svg, "g");
  return { box, svg, clip, back, curves, front };
}

/** Sets the chart's ranges; returns functions from numbers to pixels, and back for x. */
function setFrame(chart, xRange, yRange, logarithmic = false) {
  const width = chart.box.clientWidth, height = chart.box.clientHeight;
  const left = MARGIN.left, right = width - MARGIN.right, top = MARGIN.top, bottom = height - MARGIN.bottom;
  const [x0, x1] = xRange, [y0, y1] = logarithmic ? yRange.map(Math.log10) : yRange;
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.svg.setAttribute("width", width);
  chart.svg.setAttribute("height", height);
  const inside = { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
  for (const [key, value] of Object.entries(inside)) chart.clip.setAttribute(key, value);
  chart.frame = {
    left, right, top, bottom, xRange, yRange, logarithmic,
    x: (value) => left + ((value - x0) / (x1 - x0)) * (right - left),
    y: (value) => bottom - (((logarithmic ? Math.log10(value) : value) - y0) / (y1 - y0)) * (bottom - top),
    xAt: (pixel) => x0 + ((pixel - left) / (right - left)) * (x1 - x0),
  };
  return chart.frame;
}

/** Grid lines and numbers of both axes. */
function drawAxes(chart, xName, options = {}) {
  const { left, right, top, bottom, x, y, xRange, yRange, logarithmic } = chart.frame;
  chart.back.replaceChildren();
  const xTicks = options.xTicks || roundTicks(...xRange, (right - left) / 60);
  const yTicks = options.yTicks || (logarithmic ? decades(...yRange) : roundTicks(...yRange, (bottom - top) / 44));
  for (const tick of yTicks) {
    const line = { class: tick === 0 && !logarithmic ? "axis" : "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) };
    if (!options.bare) draw(chart.back, "line", line);
    const text = logarithmic ? powerOfTen(Math.round(Math.log10(tick))) : numberText(tick);
    draw(chart.back, "text", { class: "tick end", x: left - 7, y: y(tick) + 4 }, text);
  }
  for (const tick of xTicks) {
    if (!options.bare) draw(chart.back, "line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom });
    draw(chart.back, "text", { class: "tick middle", x: x(tick), y: bottom + 17 }, numberText(tick));
  }
  draw(chart.back, "text", { class: "name middle", x: (left + right) / 2, y: bottom + 32 }, xName);
}

/** At most seven powers of ten in the range. */
function decades(low, high) {
  const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((to - from) / 6)), found = [];
  for (let e = to; e >= from; e -= step) found.push(Math.pow(10, e));
  return found;
}

/** The d of a path through the points, broken where y is null. */
function pathThrough(xs, ys, frame) {
  const far = 1e5;
  let text = "", pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || Number.isNaN(ys[i])) { pen = "M"; continue; }
    const y = Math.min(far, Math.max(-far, frame.y(ys[i])));
    text += `${pen}${frame.x(xs[i]).toFixed(2)} ${y.toFixed(2)}`;
    pen = "L";
  }
  return text;
}

/** Shades what lies outside the head's domain. */
function drawOutside(chart, [low, high]) {
  const { left, right, top, bottom, x } = chart.frame, height = bottom - top;
  const shade = (from, to) => {
    if (to > from + 0.5) draw(chart.back, "rect", { class: "outside", x: from, y: top, width: to - from, height });
  };
  if (low !== null) shade(left, Math.min(right, x(low)));
  if (high !== null) shade(Math.max(left, x(high)), right);
}

/** The colours of the heat map, as red, green, blue, from weight 0 to 1. */
function heatRamp() {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3].map((i) => style.getPropertyValue(`--heat-${i}`).trim().split(/\s+/).map(Number));
  return (weight) => {
    const place = Math.min(2.999, Math.max(0, weight) * 3), i = Math.floor(place), t = place - i;
    return stops[i].map((c, j) => c + t * (stops[i + 1][j] - c));
  };
}

/** Paints columns of weights (keys upwards) over the canvas, sharp on any screen. */
function paintMap(canvas, columns, frame) {
  const ratio = window.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas.parentElement;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const small = document.createElement("canvas"), keys = columns[0].length;
  small.width = columns.length;
  small.height = keys;
  const image = new ImageData(columns.length, keys), colour = heatRamp();
  columns.forEach((column, i) => column.forEach((weight, k) => {
    const at = 4 * ((keys - 1 - k) * columns.length + i);
    image.data.set([...colour(weight).map(Math.round), 255], at);
  }));
  small.getContext("2d").putImageData(image, 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  const { left, right, top, bottom } = frame;
  context.drawImage(small, left * ratio, top * ratio, (right - left) * ratio, (bottom - top) * ratio);
}
