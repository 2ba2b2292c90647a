"use strict";
/* What all pages share: they start, show what their address says, and react to keys and to printing.
   A page is {show(moved), close(), keys()} and may have paper(). */

const $ = (id) => document.getElementById(id);

/* Builds the page from the data packed in the file, shows what the address says, and adds listeners. */
function startPage(build) {
  $("help-button").addEventListener("click", () => $("help").showModal());
  makeScrollable();
  readPacked($("packed").textContent)
    .then(unpack)
    .then((unpacked) => {
      words = unpacked.data.words;
      const page = (window.report = build(unpacked));
      addEventListener("hashchange", () => page.show(true));
      addEventListener("keydown", (event) => handleKey(page, event));
      addEventListener("beforeprint", () => handlePrinting(page, true));
      addEventListener("afterprint", () => handlePrinting(page, false));
      page.show(true);
      performance.mark("interactive");
    })
    .catch((error) => {
      $("failure").hidden = false;
      $("failure").textContent = translate("The data of this report cannot be shown: {error}. A browser of 2023 or later is needed.", { error: error.message });
      throw error;
    });
}

/* Changes the address and shows what it says. For a link that was followed, show(true) also scrolls. */
function navigate(page, changes, place) {
  view.write(changes, place);
  page.show(false);
}

/* Scrolls to a place of the page and unfolds it; does nothing for a place that the page does not have. */
function reveal(place) {
  const element = place && $(place);
  if (!element) return;
  if (element.matches("details")) element.open = true;
  element.scrollIntoView();
  document.querySelector(".finding.target")?.classList.remove("target");
  element.classList.add("target");
}

/* Goes to the next (1) or previous (-1) of ``places``, seen from the one in the address. */
function stepThrough(places, by) {
  const next = places[Math.min(places.length - 1, Math.max(0, places.indexOf(view.read().place) + by))];
  if (!next) return;
  view.write({}, next);
  reveal(next);
}

/* Esc closes, ? opens the help, other keys are the page's own; no key acts while text is entered. */
function handleKey(page, event) {
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

/* On paper everything but the tree of the model is unfolded and in the light theme. */
function handlePrinting(page, begins) {
  document.documentElement.classList.toggle("printing", begins);
  // a branch of the model would need all ops of a model on paper
  if (begins) for (const details of document.querySelectorAll("details:not(.branch)")) details.open = true;
  page.paper?.();
}

/* Writes inputs to the address, under their names there: {search: "q", state: "state"}. */
function listenToInputs(page, inputs) {
  for (const [id, name] of Object.entries(inputs)) $(id).addEventListener("input", () => navigate(page, { [name]: $(id).value }));
}

/* Sorts and filters a table as the address says, and shows the number of rows in ``counter``.
   Returns whether anything changed. */
function applySettings(table, inputs, settings, counter) {
  const values = Object.fromEntries(Object.entries(inputs).map(([id, name]) => [id, settings[name] ?? ""]));
  const { sort = "" } = settings;
  const applied = JSON.stringify([values, sort]);
  if (applied === table.applied) return false;
  table.applied = applied;
  if (sort !== (table.sorted ?? "")) table.sort(sort);
  for (const [id, value] of Object.entries(values)) if ($(id).value !== value) $(id).value = value;
  const { search, ...equal } = values;
  const count = table.filter(search, equal);
  $(counter).textContent = translate("{count} of {total}", { count: count.toLocaleString("en"), total: table.table.rows.toLocaleString("en") });
  return true;
}

/* Returns the row that the address names, -1 if the table has no such row. */
function parseRow(table, text = "-1") {
  const row = Number(text);
  return Number.isInteger(row) && row < table.table.rows ? row : -1;
}

/* Returns keys that open the next and previous row of the table, while one is open. */
function makeArrowKeys(table, row, open) {
  return row < 0 ? {} : { ArrowDown: () => open(table.findNeighbor(1)), ArrowUp: () => open(table.findNeighbor(-1)) };
}

/* Calls ``open(scope, map)`` for a click on a cell of a heat map. */
function listenToCells(open) {
  for (const map of document.querySelectorAll(".heat")) {
    map.addEventListener("click", ({ target: cell }) => {
      if (!cell.matches("td[class]")) return;
      const heads = [cell.parentElement.cells[0], map.tHead.rows[0].cells[cell.cellIndex]];
      open(heads.map((head) => head.dataset.scope).filter(Boolean).join("."), map);
    });
  }
}

/* What is wider than the screen can be scrolled with the keyboard. */
function makeScrollable(root = document) {
  const update = (element) => {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  };
  const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => update(target)));
  for (const element of root.querySelectorAll(".scroll, .command pre")) {
    update(element); // what is folded has no size that changes
    watcher.observe(element);
  }
}

/* Shows a button and makes it copy ``text``; without scripts it stays hidden. */
function enableCopying(button, text) {
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copyText(text);
    button.textContent = translate("Copied");
    setTimeout(() => (button.textContent = label), 1500);
  });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "copying" }, text); // an old browser, or a page without a secure context
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
