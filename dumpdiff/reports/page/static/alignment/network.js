"use strict";
/* The error of every pair in the order of execution. plot.js draws the axes and zooms, dots.js draws the points. */

const SHAPES = ["incomparable", "reconverged", "agreeing", "propagated", "amplified", "isolated", "introduced"]; // the last is drawn on top

class Network {
  constructor(element, table, findings, pick) {
    Object.assign(this, { element, table, pick, selected: -1 });
    this.first = findings.find((finding) => finding.first && finding.row >= 0);
    const { state, phase } = table.columns;
    this.groups = SHAPES.map((name) => [name, []]);
    const group = new Map(this.groups);
    for (let row = 0; row < table.rows; row++) group.get(state.at(row))?.push(row);
    this.runs = [];
    for (let row = 0; row < table.rows; row++) {
      if (!row || phase.values[row] !== phase.values[row - 1]) this.runs.push({ phase: phase.at(row), from: row, to: row });
      this.runs[this.runs.length - 1].to = row;
    }
    this.tip = make("div", { class: "tip", hidden: "" });
    this.ring = make("div", { class: "ring", hidden: "" });
    this.plot = new Plot(element, { background: () => this.drawPhases(), content: () => this.drawPoints() });
    this.plot.over.append(this.ring, this.tip);
    this.listen();
    this.measure("error");
  }

  listen() {
    const { over } = this.plot;
    over.addEventListener("mousemove", (event) => this.hover(event));
    over.addEventListener("mouseleave", () => (this.tip.hidden = true));
    over.addEventListener("click", (event) => {
      const row = this.plot.dragged ? -1 : this.nearest(event);
      if (row >= 0) this.pick(row);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.draw());
  }

  /* "error" or "ratio" becomes the vertical axis. */
  measure(name) {
    this.values = this.table.columns[name].values;
    this.limits = name === "ratio" ? null : this.table.columns.tolerance.values;
    let [low, high] = [Infinity, 0];
    for (const value of this.values) {
      if (value > 0 && value < low) low = value;
      if (value > high && Number.isFinite(value)) high = value;
    }
    for (const limit of this.limits ?? [1]) if (2 * limit > high) high = 2 * limit;
    if (!this.limits) low = Math.min(low, 0.1);
    const floor = low === Infinity ? -8 : Math.max(Math.floor(Math.log10(low)), -12);
    this.bottom = 10 ** (floor - 1); // equal values are on a line of their own, a decade below the smallest difference
    this.ceiling = 10 ** Math.max(Math.ceil(Math.log10(high || 1e-6)), floor + 2);
    const last = Math.max(this.table.rows - 0.5, 0.5);
    this.plot.setAxes([-0.5, last], [this.bottom, this.ceiling], (value) => this.tick(value));
  }

  tick(value) {
    if (value < this.bottom * 2) return translate("equal");
    return value >= 0.01 && value < 1e4 ? String(Number(value.toPrecision(1))) : `1e${Math.round(Math.log10(value))}`;
  }

  height(row) {
    const value = this.values[row];
    if (Number.isNaN(value)) return value;
    return Math.min(Math.max(value, this.bottom), this.ceiling);
  }

  /* Returns the place of a pair in the area between the axes. */
  at(row) {
    const { x, y } = this.plot.places();
    return [x(row), y(this.height(row))];
  }

  drawPhases() {
    const { ctx, box } = this.plot;
    const { x } = this.plot.places(true);
    ctx.font = `${12 * devicePixelRatio}px ${readColor("font")}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    for (const { phase, from, to } of this.runs) {
      const [left, right] = [Math.max(x(from - 0.5), box.left), Math.min(x(to + 0.5), box.left + box.width)];
      if (right <= left) continue;
      ctx.fillStyle = readColor(phase === "forward" ? "surface" : "band");
      ctx.fillRect(left, box.top, right - left, box.height);
      ctx.fillStyle = readColor("muted");
      const begin = left + 6 * devicePixelRatio;
      if (right - begin > ctx.measureText(translate(phase)).width) ctx.fillText(translate(phase), begin, box.top + 6 * devicePixelRatio);
    }
  }

  drawPoints() {
    const { ctx, box, low, high } = this.plot;
    const { x, y } = this.plot.places(true);
    const [from, to] = [Math.max(0, Math.floor(low) - 1), Math.min(this.table.rows - 1, Math.ceil(high) + 1)];
    const size = (this.table.rows > 5000 ? 2.6 : 4.4) * devicePixelRatio;
    const isVisible = (row) => row >= from && row <= to && !Number.isNaN(this.values[row]);
    const dots = new Dots(box);
    this.drawLimits(dots, from, to);
    for (const [name, rows] of this.groups) {
      if (name in POLYGONS) continue;
      dots.setColor(name);
      for (const row of rows) if (isVisible(row)) dots.square(x(row), y(this.height(row)), size, size);
    }
    dots.draw(ctx);
    for (const [name, rows] of this.groups) {
      if (!(name in POLYGONS)) continue;
      ctx.fillStyle = readColor(name);
      for (const row of rows) if (isVisible(row)) polygon(ctx, x(row), y(this.height(row)), POLYGONS[name](size));
    }
    if (this.first) this.drawMark(ctx, box, this.first);
    this.place();
  }

  /* Draws the tolerance: one line if it is the same for all pairs, else a stroke for each pair. */
  drawLimits(dots, from, to) {
    const { x, y } = this.plot.places(true);
    const thick = 1.5 * devicePixelRatio;
    if (!this.limits) {
      dots.setColor("tolerance");
      dots.square(dots.width / 2 + dots.left, y(1), dots.width, thick);
      return;
    }
    dots.setColor("tolerance", to - from > 5000 ? 90 : 255); // so many strokes form a band, and the points in it must be visible
    const width = Math.ceil(dots.width / (to - from + 1));
    for (let row = from; row <= to; row++) {
      const limit = this.limits[row];
      if (limit >= this.bottom) dots.square(x(row), y(limit), width, thick);
    }
  }

  /* Marks the first divergence: a line down to its point, with a label. */
  drawMark(ctx, box, { row }) {
    const [x, y] = [this.plot.places(true).x(row), this.plot.places(true).y(this.height(row))];
    if (x < box.left || x > box.left + box.width) return;
    ctx.strokeStyle = ctx.fillStyle = readColor("introduced");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, box.top);
    ctx.lineTo(x, y);
    ctx.stroke();
    ctx.setLineDash([]);
    const label = translate("first divergence");
    ctx.font = `600 ${12 * devicePixelRatio}px ${readColor("font")}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    const width = ctx.measureText(label).width + 8 * devicePixelRatio;
    const left = x + width > box.left + box.width ? x - width : x + 6 * devicePixelRatio;
    ctx.lineWidth = 4 * devicePixelRatio;
    ctx.lineJoin = "round";
    ctx.strokeStyle = readColor("surface");
    ctx.strokeText(label, left, box.top + 22 * devicePixelRatio);
    ctx.fillText(label, left, box.top + 22 * devicePixelRatio);
  }

  /* Returns the pair nearest to the pointer, -1 if none is near. */
  nearest(event) {
    const box = this.plot.over.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const reach = 24;
    const from = Math.max(0, Math.floor(this.plot.rowAt(x - reach)));
    const to = Math.min(this.table.rows - 1, Math.ceil(this.plot.rowAt(x + reach)));
    let [best, least] = [-1, reach * reach];
    for (let row = from; row <= to; row++) {
      if (Number.isNaN(this.values[row])) continue;
      const [a, b] = this.at(row);
      const distance = (a - x) ** 2 + (b - y) ** 2;
      if (distance <= least) [best, least] = [row, distance];
    }
    return best;
  }

  hover(event) {
    const row = this.nearest(event);
    this.tip.hidden = row < 0;
    this.plot.over.style.cursor = row < 0 ? "" : "pointer";
    if (row < 0) return;
    const { columns } = this.table;
    const [error, ratio] = [columns.error.at(row), columns.ratio.at(row)];
    this.tip.replaceChildren(
      make("strong", {}, mark(columns.state.at(row)), ` ${[translate(columns.state.at(row)), `${translate(columns.metric.at(row).replace("_", " "))} ${number(error)}`, `${multiple(ratio)} ${translate("× tolerance")}`].join(translate(", "))}`),
      make("code", {}, columns.target_op.at(row)),
      make("code", {}, columns.reference_op.at(row)),
    );
    const [x, y] = this.at(row);
    const { clientWidth, clientHeight } = this.plot.over;
    this.tip.style.left = `${Math.min(Math.max(0, x - this.tip.offsetWidth / 2), Math.max(0, clientWidth - this.tip.offsetWidth))}px`;
    this.tip.style.top = y > clientHeight / 2 ? `${y - this.tip.offsetHeight - 14}px` : `${y + 14}px`;
  }

  /* Draws a ring around a pair, and zooms out if the pair is not visible. */
  select(row) {
    this.selected = row;
    if (row >= 0) {
      if (row < this.plot.low || row > this.plot.high) this.plot.zoomOut();
    }
    this.place();
  }

  place() {
    const row = this.selected;
    this.ring.hidden = row < 0 || Number.isNaN(this.values[row]);
    if (this.ring.hidden) return;
    const [x, y] = this.at(row);
    this.ring.style.left = `${x}px`;
    this.ring.style.top = `${y}px`;
    this.ring.hidden = x < 0 || x > this.plot.over.clientWidth;
  }
}
