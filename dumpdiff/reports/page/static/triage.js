"use strict";
/* The report on a triage: links unfold stages, keys walk through them, commands can be copied. */

class Report {
  constructor({ data }) {
    this.stages = data.stages;
    enableCopying($("copy"), data.markdown);
    for (const command of document.querySelectorAll(".command")) {
      enableCopying(command.querySelector("button"), command.querySelector("pre").textContent);
    }
  }

  show(moved) {
    if (moved) reveal(view.read().place);
  }

  close() {
    document.querySelector(".finding.target")?.classList.remove("target");
  }

  keys() {
    return { n: () => stepThrough(this.stages, 1), p: () => stepThrough(this.stages, -1) };
  }
}

startPage((unpacked) => new Report(unpacked));
