"use strict";
// What the translated formulas use of Python's library, in double precision.
const py = (() => {
  const iter = (items) => Array.isArray(items) ? items : items[Symbol.iterator] ? [...items] : Object.keys(items);
  const many = (items) => items.length > 1 ? items : iter(items[0]);
  const truth = (value) => Array.isArray(value) ? value.length > 0 : Boolean(value);

  // In loops and not Math.min(...items): an argument for each of thousands of items may exceed the stack.
  function min(...given) {
    const items = many(given);
    let found = items[0];
    for (let index = 1; index < items.length; index += 1) if (items[index] < found) found = items[index];
    return found;
  }
  function max(...given) {
    const items = many(given);
    let found = items[0];
    for (let index = 1; index < items.length; index += 1) if (items[index] > found) found = items[index];
    return found;
  }

  // A property of a frozen struct is computed once.
  function once(struct, name, compute) {
    const value = compute();
    Object.defineProperty(struct, name, {value});
    return value;
  }

  // Neumaier's sum: exact to the last digits, as math.fsum is.
  function fsum(items) {
    let sum = 0, lost = 0;
    for (const item of iter(items)) {
      const next = sum + item;
      lost += Math.abs(sum) >= Math.abs(item) ? sum - next + item : item - next + sum;
      sum = next;
    }
    return sum + lost;
  }

  // erf by its series near zero, erfc by Lentz's continued fraction further out.
  function erfc(x) {
    if (x < 0) return 2 - erfc(-x);
    if (x > 27) return 0;
    if (x < 2.5) {
      let term = x, sum = x;
      for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n += 1) {
        term *= -x * x / n;
        sum += term / (2 * n + 1);
      }
      return 1 - 2 / Math.sqrt(Math.PI) * sum;
    }
    let fraction = 0;
    for (let n = 60; n >= 1; n -= 1) fraction = n / 2 / (x + fraction);
    return Math.exp(-x * x) / Math.sqrt(Math.PI) / (x + fraction);
  }

  // Lanczos, g = 7, nine terms.
  function gamma(z) {
    if (z < 0.5) return Math.PI / (Math.sin(Math.PI * z) * gamma(1 - z));
    const terms = [0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
      -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7];
    const x = z - 1, t = x + 7.5;
    const sum = terms.reduce((total, term, index) => (index ? total + term / (x + index) : term), 0);
    return Math.sqrt(2 * Math.PI) * t ** (x + 0.5) * Math.exp(-t) * sum;
  }

  function less(one, other) {
    if (!Array.isArray(one)) return one < other;
    const index = one.findIndex((part, place) => part !== other[place]);
    return index >= 0 && one[index] < other[index];
  }

  function equal(one, other) {
    if (one === null || typeof one !== "object") return one === other;
    return Object.keys(one).length === Object.keys(other).length && Object.keys(one).every((key) => equal(one[key], other[key]));
  }

  // Python's format: sign, grouping, digits, and f, g or %.
  function format(value, shape) {
    if (shape === "") return String(value);
    const [, sign, group, digits, kind] = /^([+]?)(,?)(?:\.(\d+))?([fg%])$/.exec(shape);
    if (kind === "g") return String(+value.toPrecision(digits ? +digits : 6));
    const number = kind === "%" ? 100 * value : value, places = digits === undefined ? 6 : +digits;
    const text = number.toLocaleString("en-US", {minimumFractionDigits: places, maximumFractionDigits: places, useGrouping: Boolean(group), roundingMode: "halfEven"});
    return `${sign && number >= 0 ? "+" : ""}${text}${kind === "%" ? "%" : ""}`;
  }

  return {
    iter, truth, min, max, once, less, equal, format,
    max_by: (items, key) => iter(items).reduce((found, item) => key(item) > key(found) ? item : found),
    abs: Math.abs, float: (value) => value === "inf" ? Infinity : Number(value), tuple: iter, list: iter,
    round: (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits,
    sum: (items) => iter(items).reduce((sum, item) => sum + item, 0), all: (items) => iter(items).every(truth),
    sorted: (items) => [...items].sort((one, other) => (less(one, other) ? -1 : 1)),
    range: (...ends) => { const [from, to] = ends.length > 1 ? ends : [0, ends[0]]; return Array.from({length: Math.max(0, to - from)}, (_, index) => from + index); },
    zip: (...lists) => iter(lists[0]).map((_, index) => lists.map((list) => iter(list)[index])),
    enumerate: (items, start = 0) => iter(items).map((item, index) => [index + start, item]),
    pairwise: (items) => items.slice(1).map((item, index) => [items[index], item]), next: (items) => items[0],
    bisect_left_by: (items, value, key) => { const index = items.findIndex((item) => key(item) >= value); return index < 0 ? items.length : index; },
    has: (items, item) => iter(items).includes(item),
    replace: (struct, changes) => new struct.constructor({...struct, ...changes}),
    math: {log: Math.log, log1p: Math.log1p, sqrt: Math.sqrt, exp: Math.exp, floor: Math.floor, ceil: Math.ceil,
      isfinite: Number.isFinite, pi: Math.PI, fsum, erfc, gamma},
  };
})();
