"use strict";
/* Two axes on a canvas: a linear one of row numbers that zooms, and a logarithmic one of decades. Dragging zooms, a
   double click shows everything again. What lies between the axes is painted by the owner, {background(), content()}. */

const MARGIN = { left: 52, right: 2, top: 9, bottom: 30 }; // in CSS pixels, for the labels of the axes
const LABEL_GAP = { x: 70, y: 17 }; // least distance of two labels, in CSS pixels
const MIN_DRAG = 5; // CSS pixels; a shorter movement is a click

class Plot {
  constructor(element, painter) {
    this.painter = painter;
    this.canvas = make("canvas");
    this.ctx = this.canvas.getContext("2d");
    this.band = make("div", { class: "zoom", hidden: "" });
    this.over = make("div", { class: "over" }, this.band);
    this.frame = make("div", { class: "plot" }, this.canvas, this.over);
    element.append(this.frame);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(element);
  }

  /* Sets both axes and draws: rows from ``first`` to ``last``, values from ``bottom`` to ``ceiling``, powers of ten. */
  setAxes([first, last], [bottom, ceiling], labelValue) {
    Object.assign(this, { whole: [first, last], decades: [bottom, ceiling].map((end) => Math.round(Math.log10(end))), labelValue });
    this.zoom(first, last);
  }

  zoom(low, high) {
    [this.low, this.high] = [Math.max(low, this.whole[0]), Math.min(high, this.whole[1])];
    this.draw();
  }

  zoomOut() {
    this.zoom(...this.whole);
  }

  get width() {
    return this.frame.clientWidth - MARGIN.left - MARGIN.right;
  }

  get height() {
    return this.frame.clientHeight - MARGIN.top - MARGIN.bottom;
  }

  /* The area between the axes, in pixels of the canvas. */
  get box() {
    const sides = { left: MARGIN.left, top: MARGIN.top, width: this.width, height: this.height };
    return Object.fromEntries(Object.entries(sides).map(([name, pixels]) => [name, pixels * devicePixelRatio]));
  }

  /* Returns functions of a row and of a value: their places in the area between the axes, or on the canvas. */
  places(isCanvas = false) {
    const { low, high, width, height } = this;
    const [bottom, top] = this.decades;
    const [scale, left, above] = isCanvas ? [devicePixelRatio, MARGIN.left, MARGIN.top] : [1, 0, 0];
    return {
      x: (row) => scale * (left + (width * (row - low)) / (high - low)),
      y: (value) => scale * (above + height * (1 - (Math.log10(value) - bottom) / (top - bottom))),
    };
  }

  /* Returns the row, as a fraction, at a place in the area between the axes. */
  rowAt(x) {
    return this.low + (x / this.width) * (this.high - this.low);
  }

  draw() {
    if (!this.whole || this.width <= 0 || this.height <= 0) return; // no room for a chart
    const { ctx, canvas, frame } = this;
    canvas.width = frame.clientWidth * devicePixelRatio;
    canvas.height = frame.clientHeight * devicePixelRatio;
    const area = { left: MARGIN.left, top: MARGIN.top, width: this.width, height: this.height };
    for (const [side, pixels] of Object.entries(area)) this.over.style[side] = `${pixels}px`;
    this.clipped(() => this.painter.background());
    ctx.font = `${12 * devicePixelRatio}px ${readColor("font")}`;
    ctx.lineWidth = devicePixelRatio;
    this.drawValues();
    this.drawRows();
    this.clipped(() => this.painter.content());
  }

  /* Nothing is painted outside the axes, but points on the border are whole. */
  clipped(paint) {
    const { ctx, box } = this;
    const spare = 6 * devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.left, box.top - spare, box.width + spare, box.height + 2 * spare);
    ctx.clip();
    paint();
    ctx.restore();
  }

  drawValues() {
    const { ctx, box } = this;
    const [bottom, top] = this.decades;
    const y = this.places(true).y;
    const step = Math.ceil((LABEL_GAP.y * (top - bottom)) / Math.max(1, this.height));
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillStyle = readColor("muted");
    ctx.strokeStyle = readColor("line");
    for (let decade = bottom; decade <= top; decade += step) {
      const height = y(10 ** decade);
      ctx.beginPath();
      ctx.moveTo(box.left, height);
      ctx.lineTo(box.left + box.width, height);
      ctx.stroke();
      ctx.fillText(this.labelValue(10 ** decade), box.left - 8 * devicePixelRatio, height);
    }
  }

  drawRows() {
    const { ctx, box, low, high } = this;
    const x = this.places(true).x;
    const least = ((high - low) * LABEL_GAP.x) / this.width;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = Math.max(1, power * [1, 2, 5, 10].find((factor) => factor * power >= least));
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (let row = Math.ceil(Math.max(0, low) / step) * step; row <= high; row += step) {
      ctx.fillText(row.toLocaleString("en"), x(row), box.top + box.height + 9 * devicePixelRatio);
    }
  }

  listen() {
    const { over, band } = this;
    const place = (event) => Math.min(Math.max(0, event.clientX - over.getBoundingClientRect().left), this.width);
    let start = null;
    over.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType !== "touch") start = place(event);
    });
    over.addEventListener("pointermove", (event) => {
      if (start === null || Math.abs(place(event) - start) < MIN_DRAG) return;
      if (band.hidden) over.setPointerCapture(event.pointerId);
      band.hidden = false;
      band.style.left = `${Math.min(start, place(event))}px`;
      band.style.width = `${Math.abs(place(event) - start)}px`;
    });
    over.addEventListener("pointerup", (event) => {
      this.dragged = start !== null && !band.hidden;
      const ends = [start, place(event)].sort((a, b) => a - b).map((end) => this.rowAt(end));
      start = null;
      band.hidden = true;
      if (this.dragged) this.zoom(...ends);
    });
    over.addEventListener("pointercancel", () => {
      start = null;
      band.hidden = true;
    });
    over.addEventListener("dblclick", () => this.zoomOut());
  }
}
