"use strict";
/* Elements and numbers. Names from a dump become text, never markup. */

/* English message -> the language of the page; startPage() sets it. What has no translation is English. */
let words = {};

/* Returns a message in the language of the page; {name} is replaced by the value of that name. */
function translate(message, values = {}) {
  return (Object.hasOwn(words, message) ? words[message] : message).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

function mark(state) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", `mark ${state}`);
  svg.setAttribute("viewBox", "-5 -5 10 10");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  const place = { href: `#mark-${state}`, x: -5, y: -5, width: 10, height: 10 };
  for (const [name, value] of Object.entries(place)) use.setAttribute(name, value);
  svg.append(use);
  return svg;
}

/* The head of a sheet: state, title, and the button that closes it. */
function sheetHead(state, title, close) {
  const button = make("button", { type: "button", class: "close", "aria-label": translate("Close") }, "×");
  button.addEventListener("click", close);
  return make("header", {}, mark(state), make("h2", {}, title), button);
}

/* Like format_number of Python: two significant digits. */
function number(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0 || !Number.isFinite(value)) return String(value).replace("Infinity", "inf");
  return value.toExponential(1).replace("e+", "e");
}

/* A multiple of the tolerance, as 2,237 and not as 2.2e3 while it is short. */
function multiple(value) {
  return value >= 10 && value < 1e6 ? Math.round(value).toLocaleString("en") : number(value);
}

/* The seven digits that a float32 of a dump holds. */
function digits(value) {
  return Number.isNaN(value) ? "–" : String(Number(value.toPrecision(7))).replace("Infinity", "inf");
}

function readColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
