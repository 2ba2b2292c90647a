"use strict";
/* The sheet with all numbers of one pair. */

const SIDE_FIELDS = ["op", "slot", "dtype", "shape", "max", "min", "mean", "norm"];
const NUMBER_FIELDS = ["error", "tolerance", "ratio", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond", "nonfinite_mismatch", "masked", "rounded_error", "confidence"];
const TRANSLATED_FIELDS = ["phase", "metric"];
const TEXT_FIELDS = ["phase", "scope", "layout", "metric", "evidence"];

function pairSheet(table, row, close) {
  const { columns } = table;
  const state = columns.state.at(row);
  const format = (name) => {
    const column = columns[name];
    if (name === "confidence") return `${Math.round(column.at(row) * 100)} %`;
    if (TRANSLATED_FIELDS.includes(name)) return translate(column.at(row).replace("_", " "));
    return column.kind === "text" ? column.at(row) : digits(column.at(row));
  };
  const line = (name, ...values) => make("tr", {}, make("th", { scope: "row" }, translate(name.replaceAll("_", " "))), ...values);
  const cell = (name, value) => make("td", { class: name === "op" || name === "slot" ? "op" : "number" }, value);
  const sides = make(
    "table",
    {},
    make("thead", {}, make("tr", {}, make("td"), make("th", { scope: "col" }, translate("target")), make("th", { scope: "col" }, translate("reference")))),
    make("tbody", {}, ...SIDE_FIELDS.map((name) => line(name, cell(name, format(`target_${name}`)), cell(name, format(`reference_${name}`))))),
  );
  const isServed = typeof pairViews === "function"; // only the pages of a server have the script
  const numberRows = NUMBER_FIELDS.filter((name) => !Number.isNaN(columns[name].at(row))).map((name) => line(name, cell(name, format(name))));
  const textRows = TEXT_FIELDS.filter((name) => format(name)).map((name) => line(name, make("td", { class: "op" }, format(name))));
  return [
    sheetHead(state, translate("Pair {row}: {state}", { row, state: translate(state) }), close),
    sides,
    ...(isServed ? pairViews(row) : []),
    make("table", {}, make("tbody", {}, ...numberRows, ...textRows)),
    isServed ? "" : make("p", { class: "hint" }, translate("Values, histogram and difference map of every pair: dumpdiff serve RESULT")),
  ];
}
