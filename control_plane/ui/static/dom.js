// Elements, made from plain values: text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

/** A table with a caption for screen readers; `rows` are lists of cells. */
export function table(caption, heads, rows, empty = "None.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll" }, h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) =>
      index === 0 ? h("th", { scope: "row" }, cell) : h("td", {}, cell)))))));
}

export const section = (title, hint, ...children) =>
  h("section", {}, h("h2", {}, title), hint && h("p", { class: "hint" }, hint), children);
