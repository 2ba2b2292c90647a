"use strict";
/* Of a served page: values and figures of a pair, which the server reads from the dumps when they are asked for. */

function pairViews(row) {
  const values = make("section", { class: "views" });
  const figures = make("section", { class: "views" });
  showValues(values, row, {});
  loadView(figures, translate("Distribution"), `pair/${row}/figures`);
  return [values, figures];
}

/* Shows a window of the values, and asks for another one when an input of it changes. */
async function showValues(section, row, choice) {
  const query = new URLSearchParams(choice).toString();
  const focus = document.activeElement?.name;
  if (!(await loadView(section, translate("Values"), `pair/${row}/values?${query}`))) return;
  const form = section.querySelector("form");
  const read = () => {
    const starts = [...form.querySelectorAll("input")].map((input) => Number(input.value) || 0);
    const axes = form.rows ? { rows: form.rows.value, columns: form.columns.value } : {};
    return starts.length ? { start: starts.join(","), ...axes } : {};
  };
  if (focus) form.elements[focus]?.focus();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => showValues(section, row, read()));
  form.querySelector("button")?.addEventListener("click", ({ target: button }) => showValues(section, row, { ...read(), start: button.dataset.start }));
}

/* Fills a section from the server, whose templates escape what they print; returns whether it is the answer to show. */
async function loadView(section, title, address) {
  section.address = address;
  if (!section.children.length) section.append(make("h3", {}, title), make("p", { class: "hint" }, translate("reading the dumps …")));
  let parts;
  try {
    const response = await fetch(address);
    const text = await response.text();
    const page = new DOMParser().parseFromString(text, "text/html");
    parts = response.ok ? [...page.body.children] : [make("p", { class: "hint" }, text.trim())];
  } catch {
    parts = [make("p", { class: "hint" }, translate("The server has ended: start dumpdiff serve again."))];
  }
  if (section.address !== address) return false; // a later question was asked
  section.replaceChildren(make("h3", {}, title), ...parts);
  makeScrollable(section);
  return section.querySelector("form") !== null;
}
