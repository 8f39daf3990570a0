// Elements and texts of the page. All text enters the page as text, never as markup.

// Characters that turn the direction of what follows: with them a text could be shown as another one.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A text with such characters spelt out, so that it is read in the order in which it is stored. */
function spelt(text) {
  return text.replace(TURNS, (turn) => `\u27e8U+${turn.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** An element with attributes and children; a child that is no element becomes text, and null is left out. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  return fill(element, ...children);
}

/** The element with these children instead of its own. */
export function fill(element, ...children) {
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined);
  element.replaceChildren(...wanted.map((child) => (typeof child === "string" ? spelt(child) : child)));
  return element;
}

/** `fill`, but what did not change stays the same element, so that selection, focus and scroll place outlast it.
 *
 * A row is found again by its address. Listeners stay those of the first time: they read attributes, no variables.
 */
export function refill(element, ...children) {
  follow(element, fill(element.cloneNode(false), ...children));
  return element;
}

function follow(shown, wanted) {
  const key = (node) => node.dataset?.open;
  const news = [...wanted.childNodes];
  const names = new Set(news.map(key));
  for (const old of [...shown.childNodes]) if (key(old) && !names.has(key(old))) old.remove();
  const rows = new Map([...shown.childNodes].filter(key).map((node) => [key(node), node]));
  let place = shown.firstChild;
  for (const next of news) {
    const old = key(next) ? rows.get(key(next)) : place && !key(place) ? place : null;
    if (!old) {
      shown.insertBefore(next, place);
    } else {
      if (old === place) place = place.nextSibling;
      else shown.insertBefore(old, place);
      becomes(old, next);
    }
  }
  while (place) {
    const rest = place.nextSibling;
    place.remove();
    place = rest;
  }
}

function becomes(old, next) {
  if (old.isEqualNode(next)) return;
  if (old.nodeType === Node.TEXT_NODE && next.nodeType === Node.TEXT_NODE) old.data = next.data;
  else if (old.cloneNode(false).isEqualNode(next.cloneNode(false))) follow(old, next);
  else old.replaceWith(next);
}

/** 1,234 or 0.0123: at most `digits` significant ones below a thousand; a dash for nothing. */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1) return `${(1000 * value).toFixed(1)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function time(at_s) {
  return at_s ? new Date(1000 * at_s).toLocaleString("en-GB") : "–";
}

/** A click on a row leads to its address; one that ends the selection of a text, or is on a link, does not. */
export function opensRow({ target, currentTarget }) {
  const { open } = currentTarget.dataset;
  if (open && String(getSelection()) === "" && !target.closest("a, input")) location.hash = open;
}

/** A table; rows are {cells, open?}, where `open` is the address that the row leads to, and its first text. */
export function table(heads, rows) {
  const head = heads.map((name) => {
    const isNumber = name.startsWith("#");
    return el("th", { class: isNumber && "number" }, isNumber ? name.slice(1) : name);
  });
  const body = rows.map(({ cells, open }) =>
    el(
      "tr",
      {
        "data-open": open,
        tabindex: open ? -1 : null, // for the keys j and k; the tabulator key goes to the link
        on: { click: opensRow },
      },
      cells.map((cell, index) => {
        const leads = open && index === 0 && typeof cell === "string";
        return el("td", { class: heads[index].startsWith("#") && "number" }, leads ? el("a", { href: open }, cell) : cell);
      }),
    ),
  );
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

export const pill = (kind, text) => el("span", { class: `pill ${kind}` }, text);

export const section = (title, ...children) => el("section", { class: "wide" }, el("h2", {}, title), ...children);
