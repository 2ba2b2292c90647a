"use strict";
/* The model as a tree that opens: phases, modules, operators; both sides next to each other, the worst pair as a color.
   Only what is open is in the document. */

const SEVERITY = ["introduced", "amplified", "propagated", "isolated", "incomparable", "agreeing", "reconverged"]; // the worst first
const DIFFERS = new Set(SEVERITY.slice(0, 4));
/* Upper limits of error over tolerance of each class but the last, as in heat_map.py. */
const RATIO_LIMITS = [0.1, 1, 10, 1e2, 1e3, 1e4, 1e5];
const RATIO_CLASSES = ["a0", "a1", "p1", "p2", "p3", "p4", "p5", "p6"];
const MAX_OPERATORS = 200; // of one module on screen; the tables have all of them

function ratioClass(ratio) {
  if (Number.isNaN(ratio)) return "none";
  const place = RATIO_LIMITS.findIndex((limit) => ratio <= limit);
  return RATIO_CLASSES[place < 0 ? RATIO_LIMITS.length : place];
}

/* A phase or a module, with what is below it. */
class Branch {
  constructor(name) {
    Object.assign(this, { name, branches: new Map(), operators: new Map(), lone: [] });
    Object.assign(this, { pairs: 0, differing: 0, uncompared: 0, worst: NaN, begins: false, ops: { target: new Set(), reference: new Set() } });
  }

  child(name) {
    if (!this.branches.has(name)) this.branches.set(name, new Branch(name));
    return this.branches.get(name);
  }

  add(state, ratio) {
    this.pairs++;
    this.differing += DIFFERS.has(state);
    this.uncompared += Number.isNaN(ratio);
    this.begins ||= state === "introduced";
    if (!(ratio <= this.worst) && !Number.isNaN(ratio)) this.worst = ratio;
  }
}

class ModelTree {
  constructor(element, pairs, unmatched, pick) {
    Object.assign(this, { element, pairs, pick });
    this.root = new Branch("");
    this.paths = new Map();
    for (let row = 0; row < pairs.rows; row++) this.addPair(row);
    for (let row = 0; row < unmatched.rows; row++) this.addLone(unmatched.columns, row);
    element.append(...[...this.root.branches.values()].map((branch) => this.makeBranch(branch, 0)));
    element.addEventListener("keydown", (event) => this.handleKey(event));
  }

  /* Returns the branches from the phase down to the module of a row. */
  path({ phase, scope }, row) {
    const key = `${phase.values[row]} ${scope.values[row]}`; // both tables have the same codes
    if (this.paths.has(key)) return this.paths.get(key);
    const path = [this.root.child(phase.at(row))];
    for (const name of scope.at(row) ? scope.at(row).split(".") : []) path.push(path[path.length - 1].child(name));
    this.paths.set(key, path);
    return path;
  }

  addPair(row) {
    const { columns } = this.pairs;
    const [state, ratio] = [columns.state.at(row), columns.ratio.at(row)];
    const path = this.path(columns, row);
    for (const branch of path) {
      branch.add(state, ratio);
      for (const side of ["target", "reference"]) branch.ops[side].add(columns[`${side}_op`].values[row]);
    }
    const { operators } = path[path.length - 1];
    const key = `${columns.target_op.values[row]} ${columns.reference_op.values[row]}`;
    if (!operators.has(key) || this.rank(row) < this.rank(operators.get(key))) operators.set(key, row);
  }

  /* An operator is shown by its worst result; by an input only if it has no result. */
  rank(row) {
    const { columns } = this.pairs;
    const isInput = !columns.target_slot.at(row).startsWith("output");
    return (isInput ? SEVERITY.length : 0) + SEVERITY.indexOf(columns.state.at(row));
  }

  /* Adds an operator without a compared value, unless a pair of its own shows it already. */
  addLone(columns, row) {
    const [side, op] = [columns.side.at(row), columns.op.values[row]];
    const path = this.path(columns, row);
    const module = path[path.length - 1];
    if (module.ops[side].has(op)) return;
    for (const branch of path) {
      branch.ops[side].add(op);
      branch.uncompared++;
    }
    module.lone.push({ side, name: columns.op.at(row), reason: columns.reason.at(row) });
  }

  makeBranch(branch, depth) {
    const color = make("i", { class: `${ratioClass(branch.worst)}${branch.begins ? " first" : ""}` });
    const count = (side) => make("span", { class: side }, this.countOps(branch.ops[side].size));
    const measure = make("span", { class: "size" }, this.measure(branch));
    const summary = make("summary", {}, this.label(depth, color, make("bdi", {}, depth ? branch.name : translate(branch.name))), count("target"), count("reference"), measure);
    branch.details = make("details", { class: "branch" }, summary);
    branch.details.addEventListener("toggle", () => this.fill(branch.details, branch, depth));
    return branch.details;
  }

  countOps(count) {
    return count === 1 ? translate("1 op") : translate("{count} ops", { count: count.toLocaleString("en") });
  }

  label(depth, ...content) {
    const label = make("span", { class: "label" }, ...content);
    label.style.setProperty("--depth", depth);
    return label;
  }

  measure({ pairs, differing, uncompared, worst }) {
    if (Number.isNaN(worst)) return translate("not compared");
    const clauses = [differing ? translate("{count} of {total} differ", { count: differing.toLocaleString("en"), total: pairs.toLocaleString("en") }) : translate("agrees")];
    if (differing) clauses.push(`${multiple(worst)} ${translate("× tol.")}`);
    if (uncompared) clauses.push(translate("{count} not compared", { count: uncompared.toLocaleString("en") }));
    return clauses.join(translate(", "));
  }

  /* Puts what is below a branch into the document, once. */
  fill(details, branch, depth) {
    if (details.childElementCount > 1) return;
    const modules = [...branch.branches.values()].map((child) => this.makeBranch(child, depth + 1));
    const operators = [...branch.operators.values()].map((row) => this.makeOperator(row, depth + 1));
    const lone = branch.lone.map((op) => this.makeLone(op, depth + 1));
    const leaves = [...operators, ...lone];
    const more = leaves.length - MAX_OPERATORS;
    const hint = more > 0 ? [make("p", { class: "hint" }, translate("{count} more ops are in the tables below.", { count: more.toLocaleString("en") }))] : [];
    details.append(...modules, ...leaves.slice(0, MAX_OPERATORS), ...hint);
  }

  makeOperator(row, depth) {
    const { columns } = this.pairs;
    const [state, ratio] = [columns.state.at(row), columns.ratio.at(row)];
    const link = make("a", { class: "leaf", href: `#pair=${row}` }, this.label(depth, make("i", { class: ratioClass(ratio) }), mark(state), translate(state)));
    for (const side of ["target", "reference"]) link.append(this.name(side, columns[`${side}_op`].at(row)));
    link.append(make("span", { class: "size" }, Number.isNaN(ratio) ? translate("not compared") : `${number(columns.error.at(row))}, ${multiple(ratio)} ${translate("× tol.")}`));
    link.addEventListener("click", (event) => {
      event.preventDefault();
      this.pick(row);
    });
    return link;
  }

  makeLone({ side, name, reason }, depth) {
    const cells = { target: make("span", { class: "target" }), reference: make("span", { class: "reference" }) };
    cells[side] = this.name(side, name);
    return make("div", { class: "leaf", title: translate(reason) }, this.label(depth, make("i", { class: "none" }), mark("unpaired"), translate("not compared")), cells.target, cells.reference, make("span", { class: "size" }, translate(reason)));
  }

  /* The end of a long name says most. */
  name(side, name) {
    return make("code", { class: side, title: name }, make("bdi", {}, name.split("/").slice(-2).join("/")));
  }

  /* Arrow keys go through what is open, and open and close, as in a tree of files. */
  handleKey(event) {
    const row = event.target.closest("summary, a.leaf");
    const rows = [...this.element.querySelectorAll("summary, a.leaf")].filter((item) => item.offsetParent);
    const place = rows.indexOf(row);
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const details = row.matches("summary") ? row.parentElement : null;
    if (event.key in moves) rows[place + moves[event.key]]?.focus();
    else if (event.key === "ArrowRight" && details) details.open = true;
    else if (event.key === "ArrowLeft" && details?.open) details.open = false;
    else if (event.key === "ArrowLeft") (details ?? row).parentElement.closest("details")?.firstElementChild.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /* Opens the way to a pair. */
  reveal(row) {
    for (const [depth, branch] of this.path(this.pairs.columns, row).entries()) {
      branch.details.open = true;
      this.fill(branch.details, branch, depth);
    }
  }
}
