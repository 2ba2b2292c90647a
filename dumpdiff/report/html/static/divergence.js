"use strict";
/* Joins the parts of the report: the address says what is shown, and every click changes the address. */

const $ = (id) => document.getElementById(id);

function pairColumns({ columns }) {
  const name = (side) => {
    const [op, slot] = [columns[`${side}_op`], columns[`${side}_slot`]];
    return (row) => make("bdi", {}, op.at(row), make("span", { class: "slot" }, ` ${slot.at(row)}`));
  };
  const link = (row) => make("a", { href: `#pair=${row}` }, row.toLocaleString("en"));
  const value = (key, say) => (row) => say(columns[key].at(row));
  return [
    { key: "row", title: "#", kind: "row", cell: link, help: "in the order of the target's execution" },
    { key: "state", title: "state", kind: "state", cell: (row) => [mark(columns.state.at(row)), columns.state.at(row)] },
    { key: "scope", title: "scope", kind: "scope", cell: (row) => make("bdi", {}, columns.scope.at(row)) },
    { key: "target_op", title: "target", kind: "name", cell: name("target") },
    { key: "reference_op", title: "reference", kind: "name", cell: name("reference") },
    { key: "phase", title: "phase", kind: "phase", cell: value("phase", String) },
    { key: "error", title: "error", kind: "number", cell: value("error", number) },
    { key: "tolerance", title: "tolerance", kind: "number limit", cell: value("tolerance", number) },
    { key: "ratio", title: "× tol.", kind: "number ratio", cell: value("ratio", multiple), help: "error over tolerance" },
    { key: "confidence", title: "sure", kind: "number sure", cell: value("confidence", (share) => `${Math.floor(share * 100)} %`), help: "how sure it is that both are one value" },
  ];
}

function unmatchedColumns({ columns }) {
  const text = (key) => (row) => make("bdi", {}, columns[key].at(row));
  return [
    { key: "side", title: "side", kind: "phase", cell: text("side") },
    { key: "op", title: "op", kind: "name", cell: text("op") },
    { key: "kind", title: "kind", kind: "scope", cell: text("kind") },
    { key: "phase", title: "phase", kind: "phase", cell: text("phase") },
    { key: "scope", title: "scope", kind: "scope", cell: text("scope") },
    { key: "reason", title: "why", kind: "reason", cell: text("reason") },
  ];
}

class Report {
  constructor({ tables, data }) {
    Object.assign(this, { data, rows: tables.pairs.rows });
    this.pair = -1;
    this.pairs = new Table($("pairs-table"), tables.pairs, pairColumns(tables.pairs), (row) => this.go({ pair: row }));
    this.pairs.onsort = (sort) => this.go({ sort });
    this.unmatched = new Table($("unmatched-table"), tables.unmatched, unmatchedColumns(tables.unmatched));
    this.unmatched.onsort = (by) => {
      this.unmatched.sort(by);
      this.filterUnmatched();
    };
    this.network = new Network($("chart"), tables.pairs, data.findings, (row) => this.go({ pair: row }));
    for (const [id, name] of [["search", "q"], ["state", "state"], ["phase", "phase"]]) {
      $(id).addEventListener("input", () => this.go({ [name]: $(id).value }));
    }
    for (const heat of document.querySelectorAll(".heat")) heat.addEventListener("click", (event) => this.showCell(heat, event.target));
    for (const id of ["unmatched-search", "unmatched-side"]) $(id).addEventListener("input", () => this.filterUnmatched());
    for (const choice of document.getElementsByName("measure")) {
      choice.addEventListener("change", () => {
        this.network.measure(choice.value);
        this.network.select(this.pair);
      });
    }
    for (const finding of document.querySelectorAll(".finding")) {
      finding.addEventListener("toggle", () => centre(finding));
      centre(finding);
    }
    addEventListener("hashchange", () => this.show(true));
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.setUpCopy();
    this.filterUnmatched();
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
    const { q = "", state = "", phase = "", sort = "" } = settings;
    const wanted = JSON.stringify([q, state, phase, sort]);
    if (wanted !== this.wanted) {
      if (sort !== (this.pairs.sorted ?? "")) this.pairs.sort(sort);
      for (const [id, value] of [["search", q], ["state", state], ["phase", phase]]) if ($(id).value !== value) $(id).value = value;
      const count = this.pairs.filter(q, { state, phase });
      $("pairs-count").textContent = `${count.toLocaleString("en")} of ${this.rows.toLocaleString("en")}`;
      if (moved && this.wanted !== undefined) $("pairs").scrollIntoView();
      this.wanted = wanted;
    }
    const row = Number(settings.pair ?? -1);
    this.showPair(Number.isInteger(row) && row < this.rows ? row : -1);
    const element = place && $(place);
    if (moved && element) this.reveal(element);
  }

  reveal(element) {
    if (element.classList.contains("finding")) element.open = true;
    element.scrollIntoView();
    document.querySelector(".finding.target")?.classList.remove("target");
    element.classList.add("target");
  }

  showPair(row) {
    const sheet = $("pair");
    if (row === this.pair) return;
    this.pair = row;
    sheet.hidden = row < 0;
    if (row >= 0) sheet.replaceChildren(...pairSheet(this.pairs.table, row, () => this.go({ pair: "" })));
    this.network.select(row);
    this.pairs.mark(row);
  }

  /* The pairs behind a cell of the heat map. */
  showCell(heat, cell) {
    if (!cell.matches("td[class]")) return;
    const heads = [cell.parentElement.cells[0], heat.tHead.rows[0].cells[cell.cellIndex]];
    const scope = heads.map((head) => head.dataset.scope).filter(Boolean).join(".");
    this.go({ q: `scope:${scope}`, phase: heat.dataset.phase, state: "" }, "pairs");
    $("pairs").scrollIntoView();
  }

  filterUnmatched() {
    const count = this.unmatched.filter($("unmatched-search").value, { side: $("unmatched-side").value });
    $("unmatched-count").textContent = count.toLocaleString("en");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const help = $("help");
    if (event.key === "Escape") {
      if (document.activeElement?.matches("input")) document.activeElement.blur();
      else if (!help.open) this.go({ pair: "" });
      return;
    }
    if (event.target.matches("input, select, textarea") || help.open) return;
    const keys = {
      n: () => this.step(1),
      p: () => this.step(-1),
      "/": () => $("search").focus(),
      "?": () => help.showModal(),
      ...(this.pair >= 0 && { ArrowDown: () => this.go({ pair: this.pairs.beside(1) }), ArrowUp: () => this.go({ pair: this.pairs.beside(-1) }) }),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  /* To the next or the previous finding. */
  step(by) {
    const ranks = this.data.findings.map((finding) => `finding-${finding.rank}`);
    const at = ranks.indexOf(view.read().place);
    const next = ranks[Math.min(ranks.length - 1, Math.max(0, at + by))];
    if (!next) return;
    view.write({}, next);
    this.reveal($(next));
  }

  setUpCopy() {
    const button = $("copy");
    button.hidden = false;
    button.addEventListener("click", async () => {
      await copied(this.data.markdown);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy as Markdown"), 1500);
    });
  }

  /* On paper everything is unfolded, and light. */
  print(begins) {
    document.documentElement.classList.toggle("printing", begins);
    if (begins) for (const details of document.querySelectorAll("details")) details.open = true;
    this.network.build();
  }
}

/* Scrolls a graph that is too wide to the ops of its finding: to both sides' if they fit, else to the target's. */
function centre(finding) {
  const here = [...finding.querySelectorAll(".graph .here")].map((node) => node.getBoundingClientRect());
  if (!here.length) return;
  const frame = finding.querySelector(".graph").parentElement;
  const { left, width } = frame.getBoundingClientRect();
  const [first, last] = [here[0], here[here.length - 1]];
  const middle = (first.left + (last.right - first.left <= width ? last.right : first.right)) / 2;
  frame.scrollLeft += middle - left - width / 2;
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
