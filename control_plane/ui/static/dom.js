// Elements, made from plain values: text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = Symbol("handlers");

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

/** The handler is looked up when the event comes, so that `show` can replace it. */
function listen(element, event, handler) {
  element[HANDLERS] = { ...element[HANDLERS], [event]: handler };
  element.addEventListener(event, (happened) => element[HANDLERS][event](happened));
}

export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

/** A table of more rows shows the first 10, and the others on request; style.css has the number too. */
const MAX_UNFOLDED = 12;
/** A table of more columns says on a phone that it scrolls. */
const MAX_NARROW = 3;

/** A table with a caption for screen readers; `rows` are lists of cells. */
export function table(caption, heads, rows, empty = "None.", maxUnfolded = MAX_UNFOLDED) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: rows.length > maxUnfolded ? "folded" : null },
    heads.length > MAX_NARROW && h("p", { class: "swipe", "aria-hidden": "true" }, "Swipe the table sideways for more columns →"),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) =>
        index === 0 ? h("th", { scope: "row", class: isText(cell) ? "text" : null }, cell) : h("td", { class: isName(cell) ? "name" : null }, cell))))))),
    rows.length > maxUnfolded && h("label", { class: "check unfold" }, h("input", { type: "checkbox" }), `Show all ${rows.length} rows`));
}

/** A single word, such as the name of a model, is not broken at its hyphens. */
const isName = (cell) => typeof cell === "string" && cell.length < 40 && !cell.includes(" ");

/** Several words, such as a time, and long names may take several lines on a phone. */
const isText = (cell) => typeof cell === "string" && (cell.includes(" ") || cell.length > 16);

export const section = (title, hint, ...children) =>
  h("section", {}, h("h2", {}, title), hint && h("p", { class: "hint" }, hint), children);

/** A section as wide as the page. */
export function wide(...parts) {
  const made = section(...parts);
  made.className = "wide";
  return made;
}

/** A description list of terms and values. */
export const facts = (entries) => h("dl", {}, Object.entries(entries)
  .filter(([, value]) => value !== null && value !== undefined)
  .flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));

/**
 * Makes `children` the content of an element by changing what differs. What is focused, selected or scrolled stays, which
 * matters where a view changes every second.
 */
export function show(element, ...children) {
  morph(element, children.flat(2).filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(child))));
}

function morph(element, children) {
  const before = [...element.childNodes];
  children.forEach((fresh, index) => {
    const old = before[index];
    if (!old) element.append(fresh);
    else if (old !== fresh) become(old, fresh);
  });
  before.slice(children.length).forEach((old) => old.remove());
}

function become(old, fresh) {
  const isSame = old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName;
  if (!isSame || Object.keys(old[HANDLERS] ?? {}).join() !== Object.keys(fresh[HANDLERS] ?? {}).join()) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return undefined;
  }
  if (fresh[HANDLERS]) old[HANDLERS] = fresh[HANDLERS];
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  return morph(old, [...fresh.childNodes]);
}
