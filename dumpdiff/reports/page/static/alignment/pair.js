"use strict";
/* The sheet with all numbers of one pair. */

const SIDED = ["op", "slot", "dtype", "shape", "max", "min", "mean", "norm"];
const MEASURED = ["error", "tolerance", "ratio", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond", "nonfinite_mismatch", "rounded_error", "confidence"];
const SAID = ["phase", "scope", "layout", "metric", "evidence"];

function pairSheet(table, row, close) {
  const { columns } = table;
  const state = columns.state.at(row);
  const said = (name) => {
    const column = columns[name];
    if (name === "confidence") return `${Math.round(column.at(row) * 100)} %`;
    return column.kind === "text" ? column.at(row) : digits(column.at(row));
  };
  const line = (name, ...values) => make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")), ...values);
  const cell = (name, value) => make("td", { class: name === "op" || name === "slot" ? "op" : "number" }, value);
  const sides = make(
    "table",
    {},
    make("thead", {}, make("tr", {}, make("td"), make("th", { scope: "col" }, "target"), make("th", { scope: "col" }, "reference"))),
    make("tbody", {}, ...SIDED.map((name) => line(name, cell(name, said(`target_${name}`)), cell(name, said(`reference_${name}`))))),
  );
  const measured = MEASURED.filter((name) => !Number.isNaN(columns[name].at(row))).map((name) => line(name, cell(name, said(name))));
  const told = SAID.filter((name) => said(name)).map((name) => line(name, make("td", { class: "op" }, said(name))));
  return [
    sheetHead(state, `Pair ${row}: ${state}`, close),
    sides,
    make("table", {}, make("tbody", {}, ...measured, ...told)),
  ];
}
