/* Numbers as texts for people. A bound is rounded up, never to nearest: what the page prints must be true. */

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function powerOfTen(exponent) {
  return "10" + [...String(exponent)].map((c) => RAISED[c]).join("");
}

/** 0.00123 as 0.00123, 1.23e-6 as 1.23·10⁻⁶, with a true minus sign. */
function numberText(value, digits = 4) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "undefined";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const e = Number(exponent);
  if (e >= -4 && e < 6) return String(Number(value.toPrecision(digits))).replace("-", "−");
  return `${String(Number(mantissa)).replace("-", "−")}·${powerOfTen(e)}`;
}

/** With all digits shown, so that numbers under each other compare. */
function longText(value) {
  if (Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4)) return numberText(value, 7);
  return value.toFixed(10).replace("-", "−");
}

/** A positive number with three digits, rounded up. */
function boundText(value) {
  if (!(value > 0) || !Number.isFinite(value)) return numberText(value);
  if (value < 1e-300) return powerOfTen(-300);
  let exponent = Math.floor(Math.log10(value));
  let digits = Math.ceil((value / Math.pow(10, exponent)) * 100 * (1 + 1e-14));
  if (digits >= 1000) { digits = Math.ceil(digits / 10); exponent += 1; }
  if (exponent >= -3 && exponent < 3) return (digits * Math.pow(10, exponent - 2)).toFixed(Math.max(0, 2 - exponent));
  return `${(digits / 100).toFixed(2)}·${powerOfTen(exponent)}`;
}

function intervalText([low, high]) {
  if (low === null && high === null) return "R";
  return `${low === null ? "(−∞" : "[" + numberText(low)}, ${high === null ? "∞)" : numberText(high) + "]"}`;
}

/** About `count` round numbers in [low, high]. */
function roundTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}
