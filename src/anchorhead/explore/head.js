"use strict";
/* The mathematics: a head evaluated at a query.
 *
 *   head(x) = sum over k of softmax_k(factor · score_k(x)) · (constant_k + gain_k x)
 *   score_k = slope_k x + intercept_k, and for keys of piece i gate_slopes[i] x + gate_levels[i] more
 *
 * The largest score is subtracted before exp, within each piece and then between pieces: nothing overflows, and a
 * steep gate costs the keys within a piece no digits.
 */

/** What each piece's keys score: their own scores, the largest of them, and the piece's gate. */
function pieceScores(head, x) {
  const pieces = [];
  let first = 0;
  head.sizes.forEach((size, i) => {
    const scores = new Float64Array(size);
    for (let j = 0; j < size; j++) scores[j] = x * head.slopes[first + j] + head.intercepts[first + j];
    pieces.push({ first, scores, top: Math.max(...scores), gate: x * head.gate_slopes[i] + head.gate_levels[i] });
    first += size;
  });
  return pieces;
}

/** Scores of all keys, multiplied by the factor. */
function headScores(head, x, factor) {
  const found = new Float64Array(head.keys);
  for (const piece of pieceScores(head, x))
    piece.scores.forEach((score, j) => { found[piece.first + j] = factor * (score + piece.gate); });
  return found;
}

/** Attention weights of all keys; they sum to one. */
function headWeights(head, x, factor) {
  const found = new Float64Array(head.keys), pieces = pieceScores(head, x);
  const largest = Math.max(...pieces.map((piece) => piece.top + piece.gate));
  let total = 0;
  for (const piece of pieces) {
    const share = Math.exp(factor * (piece.top + piece.gate - largest));
    piece.scores.forEach((score, j) => {
      const weight = share * Math.exp(factor * (score - piece.top));
      found[piece.first + j] = weight;
      total += weight;
    });
  }
  return found.map((weight) => weight / total);
}

/** Value of key k at the query. */
function keyValue(head, k, x) {
  return x * head.gains[k] + head.constants[k];
}

/** What the head answers. */
function headValue(head, x, factor) {
  const weights = headWeights(head, x, factor);
  let sum = 0;
  for (let k = 0; k < weights.length; k++) if (weights[k] > 0) sum += weights[k] * keyValue(head, k, x);
  return sum;
}

/** The claimed limit of |function - head| at x, or null outside the head's domain and where nothing is claimed. */
function claimedBound(head, x) {
  const [low, high] = head.claim.domain;
  if (!inDomain(head, x) || head.claim.approximation === null) return null;
  const scale = low === null || high === null ? 1 + Math.abs(x) : 1;
  return head.claim.approximation + head.claim.rounding * scale;
}

/** Whether the head was made for x. */
function inDomain(head, x) {
  const [low, high] = head.claim.domain;
  return (low === null || x >= low) && (high === null || x <= high);
}

/** Keys in the order in which they win from left to right: by total slope. */
function keyOrder(head) {
  const slopes = [];
  head.sizes.forEach((size, i) => {
    for (let j = 0; j < size; j++) slopes.push(head.slopes[slopes.length] + head.gate_slopes[i]);
  });
  return slopes.map((_, k) => k).sort((a, b) => slopes[a] - slopes[b] || a - b);
}
