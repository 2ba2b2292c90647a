"use strict";
/* A run of many ranks and steps: the address says which step and rank are shown (#step=0&rank=3, or #task-0-3). */

class Report {
  constructor({ data }) {
    this.first = { step: data.step, rank: data.rank };
    enableCopying($("copy"), data.markdown);
    for (const name of ["step", "rank"]) {
      $(name).addEventListener("change", () => navigate(this, { [name]: $(name).value }));
    }
    for (const row of document.querySelectorAll(".matrix tr[data-rank]")) {
      row.addEventListener("click", () => navigate(this, { rank: row.dataset.rank }));
    }
  }

  /* The step and the rank that the address selects; else those of the first divergence. */
  read() {
    const { place, settings } = view.read();
    const task = /^task-(\d*)-(\d*)$/.exec(place);
    const { step, rank } = task ? { step: task[1], rank: task[2] } : settings;
    return { step: this.choose("step", step), rank: this.choose("rank", rank) };
  }

  /* The number if the run has it, else that of the first divergence. */
  choose(name, number) {
    const isKnown = [...$(name).options].some((option) => option.value === number);
    return isKnown ? number : this.first[name];
  }

  show(moved) {
    const { step, rank } = this.read();
    const { place } = view.read();
    if (place.startsWith("task-")) view.write({ step, rank }, "tasks");
    $("step").value = step;
    $("rank").value = rank;
    for (const element of document.querySelectorAll(".matrix, .task")) {
      const isShown = element.dataset.step === step && (element.dataset.rank ?? rank) === rank;
      element.hidden = !isShown;
    }
    $("no-task").hidden = document.querySelector(".task:not([hidden])") !== null;
    for (const row of document.querySelectorAll(".matrix tr[data-rank]")) {
      row.classList.toggle("selected", row.dataset.rank === rank);
    }
    if (moved) reveal(view.read().place);
  }

  /* Selects the next (1) or previous (-1) step or rank. */
  move(name, by) {
    const select = $(name);
    const index = Math.min(select.options.length - 1, Math.max(0, select.selectedIndex + by));
    navigate(this, { [name]: select.options[index].value });
  }

  close() {
    document.querySelector(".finding.target")?.classList.remove("target");
  }

  keys() {
    return {
      ArrowDown: () => this.move("rank", 1),
      ArrowUp: () => this.move("rank", -1),
      ArrowRight: () => this.move("step", 1),
      ArrowLeft: () => this.move("step", -1),
    };
  }
}

startPage((unpacked) => new Report(unpacked));
