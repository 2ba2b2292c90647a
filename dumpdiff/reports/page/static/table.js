"use strict";
/* A table of any length: only the rows on screen are elements. Filtering looks at each distinct string once, then at
   codes; sorting permutes row numbers. Columns are {key, title, kind, cell(row)}; kind is a class of the style sheet. */

class Table {
  constructor(element, table, columns, open) {
    Object.assign(this, { element, table, columns, open });
    this.order = Uint32Array.from({ length: table.rows }, (_, row) => row);
    this.shown = this.order;
    this.lower = null;
    this.current = -1;
    this.top = make("tr", { class: "space" });
    this.bottom = make("tr", { class: "space" });
    this.body = make("tbody", {}, this.top, this.bottom);
    this.heads = columns.map((column) => {
      const button = make("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.onsort?.(this.next(column.key)));
      return make("th", { scope: "col", class: column.kind, title: column.help }, button);
    });
    const head = make("thead", {}, make("tr", {}, ...this.heads));
    const groups = make("colgroup", {}, ...columns.map((column) => make("col", { class: column.kind })));
    element.replaceChildren(make("table", {}, groups, head, this.body));
    element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw(true)).observe(element);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-row]");
      if (row && this.open) this.open(Number(row.dataset.row));
    });
  }

  /* Rows that hold every word in one of the text columns, and exactly the values of ``equal`` ({state: "agreeing"}).
     A word like scope:layers.1 asks for one column as a whole. */
  filter(query, equal = {}) {
    this.lower ??= this.table.strings.map((text) => text.toLowerCase());
    const text = Object.entries(this.table.columns).filter(([, column]) => column.kind === "text");
    const tests = [];
    for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
      const [key, value] = [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)];
      const whole = this.table.columns[key]?.kind === "text";
      const hits = Uint8Array.from(this.lower, whole ? (string) => string === value : (string) => string.includes(word));
      tests.push([hits, whole ? [this.table.columns[key].values] : text.map(([, column]) => column.values)]);
    }
    for (const [key, value] of Object.entries(equal)) {
      if (value) tests.push([Uint8Array.from(this.table.strings, (string) => string === value), [this.table.columns[key].values]]);
    }
    const keep = (row) => tests.every(([hits, columns]) => columns.some((values) => hits[values[row]]));
    this.shown = tests.length ? this.order.filter(keep) : this.order;
    this.element.scrollTop = 0;
    this.draw(true);
    return this.shown.length;
  }

  /* Returns the order after a click on a header: "error" ascending, "-error" descending; numbers begin with the largest. */
  next(key) {
    const first = this.table.columns[key]?.kind === "number" ? `-${key}` : key;
    const second = first === key ? `-${key}` : key;
    return this.sorted === first ? second : first;
  }

  /* Orders all rows by a column; "" is the order of the dump. Needs a filter() after it. */
  sort(by) {
    this.sorted = by;
    const [key, sign] = by.startsWith("-") ? [by.slice(1), -1] : [by, 1];
    const column = this.table.columns[key];
    const order = Uint32Array.from({ length: this.table.rows }, (_, row) => row);
    if (column) {
      const values = column.kind === "text" ? this.ranks(column) : column.values;
      const last = (value) => (Number.isNaN(value) ? 1 : 0); // not measured: always at the end
      order.sort((a, b) => last(values[a]) - last(values[b]) || sign * (values[a] - values[b]) || a - b);
    } else if (sign < 0) order.reverse();
    this.order = order;
    this.heads.forEach((head, i) => {
      const active = this.columns[i].key === key;
      head.toggleAttribute("aria-sort", active);
      if (active) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    });
  }

  /* For each row the place of its string in the alphabet. */
  ranks(column) {
    const { strings } = this.table;
    this.alphabet ??= Uint32Array.from(
      Array.from(strings.keys()).sort((a, b) => (strings[a] < strings[b] ? -1 : 1)).reduce((rank, code, place) => {
        rank[code] = place;
        return rank;
      }, new Uint32Array(strings.length)),
    );
    return column.values.map((code) => this.alphabet[code]);
  }

  /* Marks a row and scrolls to it, if the filter shows it. */
  mark(row) {
    this.current = row;
    const place = this.shown.indexOf(row);
    if (place >= 0) {
      const y = place * this.height;
      const { scrollTop, clientHeight } = this.element;
      if (y < scrollTop || y > scrollTop + clientHeight - 3 * this.height) this.element.scrollTop = Math.max(0, y - clientHeight / 3);
    }
    this.draw(true);
  }

  /* Returns the next (1) or previous (-1) row on screen, seen from the marked one. */
  findNeighbor(step) {
    const place = this.shown.indexOf(this.current);
    return this.shown[Math.min(this.shown.length - 1, Math.max(0, place + step))];
  }

  draw(anew = false) {
    this.height ||= parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 30;
    const spare = 12;
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - spare);
    const count = Math.ceil((this.element.clientHeight || 600) / this.height) + 2 * spare;
    const last = Math.min(this.shown.length, first + count);
    if (!anew && this.first !== undefined && Math.abs(first - this.first) < spare / 2 && last - first === this.count) return;
    Object.assign(this, { first, count: last - first });
    const rows = [];
    for (let place = first; place < last; place++) rows.push(this.row(this.shown[place], place));
    this.top.style.height = `${first * this.height}px`;
    this.bottom.style.height = `${(this.shown.length - last) * this.height}px`;
    this.body.replaceChildren(this.top, ...rows, this.bottom);
  }

  row(row, place) {
    const cells = this.columns.map((column) => make("td", { class: column.kind }, ...[column.cell(row)].flat()));
    const classes = [place % 2 ? "odd" : "even", row === this.current ? "current" : ""].join(" ").trim();
    return make("tr", { "data-row": row, class: classes }, ...cells);
  }
}
