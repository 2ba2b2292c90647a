"use strict";
/* The parameters of two checkpoints: the address says what is shown, and every click changes the address. */

function parameterColumns({ columns }) {
  const text = (key) => (row) => make("bdi", {}, columns[key].at(row));
  const value = (key) => (row) => number(columns[key].at(row));
  const explain = (row) => ["wrong", "layout", "rounding"].map((key) => columns[key].at(row)).filter(Boolean).join(translate(", "));
  const link = (row) => make("a", { href: `#parameter=${row}` }, row.toLocaleString("en"));
  return [
    { key: "row", title: "#", kind: "row", cell: link, help: translate("in the order of the comparison") },
    { key: "state", title: translate("relation"), kind: "state", cell: (row) => [mark(columns.state.at(row)), translate(columns.state.at(row))] },
    { key: "parameter", title: translate("parameter"), kind: "name", cell: text("parameter") },
    { key: "target", title: translate("target"), kind: "scope", cell: text("target") },
    { key: "reference", title: translate("reference"), kind: "scope", cell: text("reference") },
    { key: "target_dtype", title: translate("dtype"), kind: "dtype", cell: text("target_dtype"), help: translate("of the target") },
    { key: "error", title: translate("error"), kind: "number", cell: value("error"), help: translate("L2 norm of the difference over that of the reference") },
    { key: "wrong", title: translate("explanation"), kind: "reason", cell: (row) => make("bdi", {}, explain(row)) },
  ];
}

const SIDES = ["target", "reference"];
const TEXT_FIELDS = ["wrong", "kind", "actual_parameter", "layout", "rounding", "shape", "fused_parameter", "paired_by"];
const NUMBER_FIELDS = ["error", "max_absolute", "differing_elements", "elements"];

/* The sheet with all that is known of one parameter. */
function parameterSheet({ columns }, row, close) {
  const line = (name, kind, value) =>
    make("tr", {}, make("th", { scope: "row" }, translate(name.replaceAll("_", " "))), make("td", { class: kind }, value));
  const state = columns.state.at(row);
  const sides = SIDES.flatMap((side) => [
    line(side, "op", columns[side].at(row)),
    line("its dtype", "op", columns[`${side}_dtype`].at(row)),
  ]);
  const textRows = TEXT_FIELDS.filter((name) => columns[name].at(row)).map((name) => line(name, "", columns[name].at(row)));
  const numberRows = NUMBER_FIELDS.map((name) => line(name, "number", digits(columns[name].at(row))));
  return [
    sheetHead(state, `${columns.parameter.at(row)}${translate(": ")}${translate(state)}`, close),
    make("table", {}, make("tbody", {}, ...textRows, ...sides, ...numberRows)),
  ];
}

const CHOICES = { search: "q", state: "state" };

class Report {
  constructor({ tables }) {
    this.table = new Table($("parameters-table"), tables.parameters, parameterColumns(tables.parameters), (row) => this.open(row));
    this.table.onsort = (sort) => navigate(this, { sort });
    this.row = -1;
    listenToInputs(this, CHOICES);
    listenToCells((scope) => {
      navigate(this, { q: `scope:${scope}`, state: "" }, "parameters");
      $("parameters").scrollIntoView();
    });
  }

  show(moved) {
    const { place, settings } = view.read();
    applySettings(this.table, CHOICES, settings, "count");
    this.showRow(parseRow(this.table, settings.parameter));
    if (moved) reveal(place);
  }

  showRow(row) {
    if (row === this.row) return;
    this.row = row;
    const sheet = $("parameter");
    sheet.hidden = row < 0;
    if (row >= 0) sheet.replaceChildren(...parameterSheet(this.table.table, row, () => this.close()));
    this.table.mark(row);
  }

  open(row) {
    navigate(this, { parameter: row });
  }

  close() {
    navigate(this, { parameter: "" });
  }

  keys() {
    return { "/": () => $("search").focus(), ...makeArrowKeys(this.table, this.row, (row) => this.open(row)) };
  }
}

startPage((unpacked) => new Report(unpacked));
