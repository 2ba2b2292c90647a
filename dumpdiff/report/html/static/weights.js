"use strict";
/* The parameters of two checkpoints: the address says what is shown, and every click changes the address. */

const $ = (id) => document.getElementById(id);

function parameterColumns({ columns }) {
  const text = (key) => (row) => make("bdi", {}, columns[key].at(row));
  const value = (key) => (row) => number(columns[key].at(row));
  const explained = (row) => ["wrong", "layout", "rounding"].map((key) => columns[key].at(row)).filter(Boolean).join(", ");
  const link = (row) => make("a", { href: `#parameter=${row}` }, row.toLocaleString("en"));
  return [
    { key: "row", title: "#", kind: "row", cell: link, help: "in the order of the comparison" },
    { key: "state", title: "relation", kind: "state", cell: (row) => [mark(columns.state.at(row)), columns.state.at(row)] },
    { key: "parameter", title: "parameter", kind: "name", cell: text("parameter") },
    { key: "target", title: "target", kind: "scope", cell: text("target") },
    { key: "reference", title: "reference", kind: "scope", cell: text("reference") },
    { key: "target_dtype", title: "dtype", kind: "dtype", cell: text("target_dtype"), help: "of the target" },
    { key: "error", title: "error", kind: "number", cell: value("error"), help: "L2 norm of the difference over that of the reference" },
    { key: "wrong", title: "explanation", kind: "reason", cell: (row) => make("bdi", {}, explained(row)) },
  ];
}

const SIDED = ["target", "reference"];
const SAID = ["wrong", "kind", "holds", "layout", "rounding", "shape", "part_of", "paired_by"];
const MEASURED = ["error", "largest", "unequal", "elements"];

/* The sheet with all that is known of one parameter. */
function parameterSheet({ columns }, row, close) {
  const line = (name, kind, value) =>
    make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")), make("td", { class: kind }, value));
  const button = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  button.addEventListener("click", close);
  const state = columns.state.at(row);
  const sides = SIDED.flatMap((side) => [
    line(side, "op", columns[side].at(row)),
    line("its dtype", "op", columns[`${side}_dtype`].at(row)),
  ]);
  const told = SAID.filter((name) => columns[name].at(row)).map((name) => line(name, "", columns[name].at(row)));
  const measured = MEASURED.map((name) => line(name, "number", digits(columns[name].at(row))));
  return [
    make("header", {}, mark(state), make("h2", {}, `${columns.parameter.at(row)}: ${state}`), button),
    make("table", {}, make("tbody", {}, ...told, ...sides, ...measured)),
  ];
}

class Report {
  constructor({ tables }) {
    this.table = new Table($("parameters-table"), tables.parameters, parameterColumns(tables.parameters), (row) => this.go({ parameter: row }));
    this.table.onsort = (sort) => this.go({ sort });
    this.row = -1;
    for (const [id, name] of [["search", "q"], ["state", "state"]]) $(id).addEventListener("input", () => this.go({ [name]: $(id).value }));
    for (const heat of document.querySelectorAll(".heat")) heat.addEventListener("click", (event) => this.showCell(heat, event.target));
    addEventListener("hashchange", () => this.show(true));
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.show(true);
  }

  /* Changes the address and shows what it says. */
  go(changes, place) {
    view.write(changes, place);
    this.show(false);
  }

  /* Shows what the address says; with ``moved`` (a link was followed) it also scrolls there. */
  show(moved) {
    const { place, settings } = view.read();
    const { q = "", state = "", sort = "" } = settings;
    const wanted = JSON.stringify([q, state, sort]);
    if (wanted !== this.wanted) {
      if (sort !== (this.table.sorted ?? "")) this.table.sort(sort);
      for (const [id, value] of [["search", q], ["state", state]]) if ($(id).value !== value) $(id).value = value;
      const count = this.table.filter(q, { state });
      $("count").textContent = `${count.toLocaleString("en")} of ${this.table.table.rows.toLocaleString("en")}`;
      this.wanted = wanted;
    }
    const row = Number(settings.parameter ?? -1);
    this.showRow(Number.isInteger(row) && row < this.table.table.rows ? row : -1);
    const element = place && $(place);
    if (!moved || !element) return;
    if (element.classList.contains("finding")) element.open = true;
    element.scrollIntoView();
  }

  showRow(row) {
    if (row === this.row) return;
    this.row = row;
    const sheet = $("parameter");
    sheet.hidden = row < 0;
    if (row >= 0) sheet.replaceChildren(...parameterSheet(this.table.table, row, () => this.go({ parameter: "" })));
    this.table.mark(row);
  }

  /* The parameters behind a cell of the map. */
  showCell(heat, cell) {
    if (!cell.matches("td[class]")) return;
    const heads = [cell.parentElement.cells[0], heat.tHead.rows[0].cells[cell.cellIndex]];
    const scope = heads.map((head) => head.dataset.scope).filter(Boolean).join(".");
    this.go({ q: `scope:${scope}`, state: "" }, "parameters");
    $("parameters").scrollIntoView();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const help = $("help");
    if (event.key === "Escape") {
      if (document.activeElement?.matches("input")) document.activeElement.blur();
      else if (!help.open) this.go({ parameter: "" });
      return;
    }
    if (event.target.matches("input, select, textarea") || help.open) return;
    const keys = {
      "/": () => $("search").focus(),
      "?": () => help.showModal(),
      ...(this.row >= 0 && { ArrowDown: () => this.go({ parameter: this.table.beside(1) }), ArrowUp: () => this.go({ parameter: this.table.beside(-1) }) }),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  /* On paper everything is unfolded, and light. */
  print(begins) {
    document.documentElement.classList.toggle("printing", begins);
    if (begins) for (const details of document.querySelectorAll("details")) details.open = true;
  }
}

$("help-button").addEventListener("click", () => $("help").showModal());
unpack($("packed").textContent)
  .then((unpacked) => {
    window.report = new Report(unpacked);
    performance.mark("interactive");
  })
  .catch((error) => {
    $("failure").hidden = false;
    $("failure").textContent = `The tables of this report cannot be shown: ${error.message}. A browser of 2023 or later can.`;
    throw error;
  });
