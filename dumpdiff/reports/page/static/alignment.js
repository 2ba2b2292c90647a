"use strict";
/* The report on two dumps: the address says what is shown, and every click changes the address. */

function pairColumns({ columns }) {
  const name = (side) => {
    const [op, slot] = [columns[`${side}_op`], columns[`${side}_slot`]];
    return (row) => make("bdi", {}, op.at(row), make("span", { class: "slot" }, ` ${slot.at(row)}`));
  };
  const link = (row) => make("a", { href: `#pair=${row}` }, row.toLocaleString("en"));
  const value = (key, format) => (row) => format(columns[key].at(row));
  return [
    { key: "row", title: "#", kind: "row", cell: link, help: translate("in the order of the target's execution") },
    { key: "state", title: translate("state"), kind: "state", cell: (row) => [mark(columns.state.at(row)), translate(columns.state.at(row))] },
    { key: "scope", title: translate("scope"), kind: "scope", cell: (row) => make("bdi", {}, columns.scope.at(row)) },
    { key: "target_op", title: translate("target"), kind: "name", cell: name("target") },
    { key: "reference_op", title: translate("reference"), kind: "name", cell: name("reference") },
    { key: "phase", title: translate("phase"), kind: "phase", cell: value("phase", translate) },
    { key: "error", title: translate("error"), kind: "number", cell: value("error", number) },
    { key: "tolerance", title: translate("tolerance"), kind: "number limit", cell: value("tolerance", number) },
    { key: "ratio", title: translate("× tol."), kind: "number ratio", cell: value("ratio", multiple), help: translate("error over tolerance") },
    { key: "confidence", title: translate("confidence"), kind: "number confidence", cell: value("confidence", (share) => `${Math.floor(share * 100)} %`), help: translate("that both are the same value") },
  ];
}

function textCell(columns, key) {
  return (row) => make("bdi", {}, columns[key].at(row));
}

function uncomparedColumns({ columns }) {
  const text = (key) => textCell(columns, key);
  const translated = (key) => (row) => translate(columns[key].at(row));
  return [
    { key: "side", title: translate("side"), kind: "phase", cell: translated("side") },
    { key: "state", title: translate("state"), kind: "state", cell: (row) => [mark(columns.state.at(row)), translate(columns.state.at(row))] },
    { key: "op", title: translate("op"), kind: "name", cell: text("op") },
    { key: "slot", title: translate("slot"), kind: "slot", cell: text("slot") },
    { key: "phase", title: translate("phase"), kind: "phase", cell: translated("phase") },
    { key: "scope", title: translate("scope"), kind: "scope", cell: text("scope") },
    { key: "reason", title: translate("why"), kind: "reason", cell: translated("reason") },
  ];
}

function unmatchedColumns({ columns }) {
  const text = (key) => textCell(columns, key);
  const translated = (key) => (row) => translate(columns[key].at(row));
  return [
    { key: "side", title: translate("side"), kind: "phase", cell: translated("side") },
    { key: "op", title: translate("op"), kind: "name", cell: text("op") },
    { key: "kind", title: translate("kind"), kind: "scope", cell: text("kind") },
    { key: "phase", title: translate("phase"), kind: "phase", cell: translated("phase") },
    { key: "scope", title: translate("scope"), kind: "scope", cell: text("scope") },
    { key: "reason", title: translate("why"), kind: "reason", cell: translated("reason") },
  ];
}

/* A table with a search and a choice of the side; the address does not hold them. */
class SideTable {
  constructor(name, table, columns) {
    this.name = name;
    this.table = new Table($(`${name}-table`), table, columns);
    this.table.onsort = (by) => {
      this.table.sort(by);
      this.filter();
    };
    for (const id of [`${name}-search`, `${name}-side`]) $(id).addEventListener("input", () => this.filter());
    this.filter();
  }

  filter() {
    const count = this.table.filter($(`${this.name}-search`).value, { side: $(`${this.name}-side`).value });
    $(`${this.name}-count`).textContent = count.toLocaleString("en");
  }
}

const CHOICES = { search: "q", state: "state", phase: "phase", values: "values" };
const FIRST_ORDER = "-ratio"; // the address has no other

class Report {
  constructor({ tables, data }) {
    this.data = data;
    this.pair = -1;
    this.pairs = new Table($("pairs-table"), tables.pairs, pairColumns(tables.pairs), (row) => this.open(row));
    this.pairs.onsort = (sort) => navigate(this, { sort });
    this.uncompared = new SideTable("uncompared", tables.uncompared, uncomparedColumns(tables.uncompared));
    this.unmatched = new SideTable("unmatched", tables.unmatched, unmatchedColumns(tables.unmatched));
    this.network = new Network($("chart"), tables.pairs, data.findings, (row) => this.open(row));
    this.model = new ModelTree($("model-tree"), tables.pairs, tables.unmatched, (row) => this.open(row));
    if (this.network.first) this.model.reveal(this.network.first.row);
    listenToInputs(this, CHOICES);
    listenToCells((scope, map) => {
      navigate(this, { q: `scope:${scope}`, phase: map.dataset.phase, state: "" }, "pairs");
      $("pairs").scrollIntoView();
    });
    for (const choice of document.getElementsByName("measure")) {
      choice.addEventListener("change", () => {
        this.network.measure(choice.value);
        this.network.select(this.pair);
      });
    }
    for (const finding of document.querySelectorAll(".finding")) {
      finding.addEventListener("toggle", () => centerGraph(finding));
      centerGraph(finding);
    }
    enableCopying($("copy"), data.markdown);
  }

  show(moved) {
    const { place, settings } = view.read();
    const again = this.pairs.applied !== undefined;
    if (applySettings(this.pairs, CHOICES, { sort: FIRST_ORDER, ...settings }, "pairs-count") && moved && again) $("pairs").scrollIntoView();
    this.showPair(parseRow(this.pairs, settings.pair));
    if (moved) reveal(place);
  }

  showPair(row) {
    const sheet = $("pair");
    if (row === this.pair) return;
    this.pair = row;
    sheet.hidden = row < 0;
    if (row >= 0) sheet.replaceChildren(...pairSheet(this.pairs.table, row, () => this.close()));
    this.network.select(row);
    this.pairs.mark(row);
  }

  open(row) {
    navigate(this, { pair: row });
  }

  close() {
    navigate(this, { pair: "" });
  }

  keys() {
    const findings = this.data.findings.map((finding) => `finding-${finding.id}`);
    return {
      n: () => stepThrough(findings, 1),
      p: () => stepThrough(findings, -1),
      "/": () => $("search").focus(),
      ...makeArrowKeys(this.pairs, this.pair, (row) => this.open(row)),
    };
  }

  /* Draws the chart again in the colors of paper, and later in those of the screen. */
  paper() {
    this.network.plot.draw();
  }
}

/* Scrolls a graph that is too wide to the ops of its finding: both sides' if they fit, else the target's. */
function centerGraph(finding) {
  const here = [...finding.querySelectorAll(".graph .here")].map((node) => node.getBoundingClientRect());
  if (!here.length) return;
  const frame = finding.querySelector(".graph").parentElement;
  const { left, width } = frame.getBoundingClientRect();
  const [first, last] = [here[0], here[here.length - 1]];
  const middle = (first.left + (last.right - first.left <= width ? last.right : first.right)) / 2;
  frame.scrollLeft += middle - left - width / 2;
}

startPage((unpacked) => new Report(unpacked));
