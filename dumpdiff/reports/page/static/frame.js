"use strict";
/* What every page does around its content: it begins, its address says what is shown, it hears keys and the printer.
   A page is {show(moved), close(), keys()} and may have paper(). Tables and maps of cells are chosen from alike. */

const $ = (id) => document.getElementById(id);

/* Builds the page of what is packed in the file, shows what the address says, and listens. */
function begin(build) {
  $("help-button").addEventListener("click", () => $("help").showModal());
  unpack($("packed").textContent)
    .then((unpacked) => {
      const page = (window.report = build(unpacked));
      addEventListener("hashchange", () => page.show(true));
      addEventListener("keydown", (event) => pressed(page, event));
      addEventListener("beforeprint", () => printed(page, true));
      addEventListener("afterprint", () => printed(page, false));
      page.show(true);
      performance.mark("interactive");
    })
    .catch((error) => {
      $("failure").hidden = false;
      $("failure").textContent = `What this report unpacks cannot be shown: ${error.message}. A browser of 2023 or later can.`;
      throw error;
    });
}

/* Changes the address and shows what it says; with show(true), for a link that was followed, a page also scrolls. */
function go(page, changes, place) {
  view.write(changes, place);
  page.show(false);
}

/* Brings a place of the page on screen, unfolded; '' or what the page does not have is no place. */
function reveal(place) {
  const element = place && $(place);
  if (!element) return;
  if (element.matches("details")) element.open = true;
  element.scrollIntoView();
  document.querySelector(".finding.target")?.classList.remove("target");
  element.classList.add("target");
}

/* To the place that follows the address's in ``places``, or stands before it. */
function step(places, by) {
  const next = places[Math.min(places.length - 1, Math.max(0, places.indexOf(view.read().place) + by))];
  if (!next) return;
  view.write({}, next);
  reveal(next);
}

/* Esc closes, ? helps, the page's own keys do what it says; none of it while something is written. */
function pressed(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const help = $("help");
  if (event.key === "Escape") {
    if (document.activeElement?.matches("input")) document.activeElement.blur();
    else if (!help.open) page.close();
    return;
  }
  if (event.target.matches("input, select, textarea") || help.open) return;
  const keys = { "?": () => help.showModal(), ...page.keys() };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

/* On paper everything is unfolded, and light. */
function printed(page, begins) {
  document.documentElement.classList.toggle("printing", begins);
  if (begins) for (const details of document.querySelectorAll("details")) details.open = true;
  page.paper?.();
}

/* Inputs write what the address calls them: {search: "q", state: "state"}. */
function hear(page, inputs) {
  for (const [id, name] of Object.entries(inputs)) $(id).addEventListener("input", () => go(page, { [name]: $(id).value }));
}

/* Sorts and filters a table as the address says, counts its rows in ``counter``; whether anything changed. */
function choose(table, inputs, settings, counter) {
  const chosen = Object.fromEntries(Object.entries(inputs).map(([id, name]) => [id, settings[name] ?? ""]));
  const { sort = "" } = settings;
  const wanted = JSON.stringify([chosen, sort]);
  if (wanted === table.wanted) return false;
  table.wanted = wanted;
  if (sort !== (table.sorted ?? "")) table.sort(sort);
  for (const [id, value] of Object.entries(chosen)) if ($(id).value !== value) $(id).value = value;
  const { search, ...equal } = chosen;
  const count = table.filter(search, equal);
  $(counter).textContent = `${count.toLocaleString("en")} of ${table.table.rows.toLocaleString("en")}`;
  return true;
}

/* The row that the address names, -1 if there is none such. */
function rowOf(table, text = "-1") {
  const row = Number(text);
  return Number.isInteger(row) && row < table.table.rows ? row : -1;
}

/* ↓ and ↑ walk through the rows as they are shown, while one is open. */
function walking(table, row, open) {
  return row < 0 ? {} : { ArrowDown: () => open(table.beside(1)), ArrowUp: () => open(table.beside(-1)) };
}

/* A click on a cell of a map of layers by components asks for ``open(scope, map)``. */
function hearCells(open) {
  for (const map of document.querySelectorAll(".heat")) {
    map.addEventListener("click", ({ target: cell }) => {
      if (!cell.matches("td[class]")) return;
      const heads = [cell.parentElement.cells[0], map.tHead.rows[0].cells[cell.cellIndex]];
      open(heads.map((head) => head.dataset.scope).filter(Boolean).join("."), map);
    });
  }
}

/* Makes a button copy ``text``; it was hidden until now, since without scripts it does nothing. */
function copies(button, text) {
  const said = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copied(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = said), 1500);
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "copying" }, text); // an old browser, or a page that is no secure context
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
