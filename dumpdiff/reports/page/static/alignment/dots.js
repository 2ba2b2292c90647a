"use strict";
/* Points by the hundred thousand: squares as pixels, the other shapes as paths. */

/* Corners around a point, for the states that are rare and must be visible. */
const POLYGONS = {
  amplified: (size) => [[0, -size], [size * 0.9, size / 2], [-size * 0.9, size / 2]],
  isolated: (size) => {
    const far = Math.max(size, 5 * devicePixelRatio);
    return [[0, far], [far * 0.9, -far / 2], [-far * 0.9, -far / 2]];
  },
  introduced: (size) => {
    const far = Math.max(size, 6 * devicePixelRatio);
    return [[0, -far], [far, 0], [0, far], [-far, 0]];
  },
};

function polygon(ctx, x, y, corners) {
  ctx.beginPath();
  for (const [right, down] of corners) ctx.lineTo(x + right, y + down);
  ctx.closePath();
  ctx.fill();
}

/* Squares written as pixels: a canvas needs half a second for two hundred thousand rectangles, this a fiftieth of it. */
class Dots {
  constructor({ left, top, width, height }) {
    this.margin = Math.ceil(6 * devicePixelRatio); // points on the border are not cut
    this.left = Math.round(left) - this.margin;
    this.top = Math.round(top) - this.margin;
    this.width = Math.round(width) + 2 * this.margin;
    this.height = Math.round(height) + 2 * this.margin;
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /* Sets the color, a name of the style sheet, of the squares that follow. */
  setColor(name, alpha = 255) {
    const code = parseInt(readColor(name).slice(1), 16);
    this.value = ((alpha << 24) | ((code & 255) << 16) | (code & 0xff00) | (code >> 16)) >>> 0;
  }

  square(x, y, across, down) {
    const left = Math.max(0, Math.round(x - across / 2) - this.left);
    const top = Math.max(0, Math.round(y - down / 2) - this.top);
    const right = Math.min(this.width, left + Math.max(1, Math.round(across)));
    const bottom = Math.min(this.height, top + Math.max(1, Math.round(down)));
    for (let row = top; row < bottom; row++) this.pixels.fill(this.value, row * this.width + left, row * this.width + right);
  }

  draw(ctx) {
    const canvas = make("canvas", { width: this.width, height: this.height });
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    ctx.drawImage(canvas, this.left, this.top);
  }
}
