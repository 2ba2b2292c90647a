"use strict";
/* The report on a triage: links unfold stages, keys walk through them, commands can be copied. */

class Report {
  constructor({ data }) {
    this.stages = data.stages;
    copies($("copy"), data.markdown);
    for (const command of document.querySelectorAll(".command")) {
      copies(command.querySelector("button"), command.querySelector("pre").textContent);
    }
  }

  show(moved) {
    if (moved) reveal(view.read().place);
  }

  close() {
    document.querySelector(".finding.target")?.classList.remove("target");
  }

  keys() {
    return { n: () => step(this.stages, 1), p: () => step(this.stages, -1) };
  }
}

begin((unpacked) => new Report(unpacked));
