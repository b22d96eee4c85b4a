"use strict";
// The script of the blind review. Whatever comes from products or models is written with textContent, never as HTML.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const questions = content.questions; // [{category, text, lines: [[attribute, value 1, value 2]]}], null for no value
  const storeKey = "hpd-review " + content.id;
  const find = (id) => document.getElementById(id);
  // A second click or a key held down must not decide the product that has only just come up.
  const tooSoon = 300; // milliseconds

  // {reviewer, decisions: {number of the question, from 1: {choice, seconds, at}}}
  let state = load();
  let place = firstOpen(); // questions.length: the end
  let shownAt = 0; // performance.now() when the question came up
  let watched = 0; // milliseconds in sight on this visit, up to `since`
  let since = null; // performance.now(), null while the page is out of sight

  function load() {
    try {
      const found = JSON.parse(localStorage.getItem(storeKey));
      if (found && typeof found.reviewer === "string" && found.decisions) return found;
    } catch (error) {
      // No storage, which save() tells, or nothing in it that can be read.
    }
    return { reviewer: "", decisions: {} };
  }

  function save() {
    try {
      localStorage.setItem(storeKey, JSON.stringify(state));
      find("not-kept").hidden = true;
    } catch (error) {
      find("not-kept").hidden = false;
    }
  }

  function firstOpen() {
    const open = questions.findIndex((_, index) => !state.decisions[index + 1]);
    return open < 0 ? questions.length : open;
  }

  function countOf(choices) {
    return Object.values(state.decisions).filter((decision) => choices.includes(decision.choice)).length;
  }

  function cell(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    made.dir = "auto";
    return made;
  }

  function valueCell(value) {
    const made = cell("td", value ?? "no value");
    made.classList.toggle("none", value === null);
    return made;
  }

  function showAnswers(lines) {
    const rows = lines
      .filter(([, one, two]) => one !== null || two !== null)
      .map(([attribute, one, two]) => {
        const row = document.createElement("tr");
        const head = cell("th", attribute);
        head.scope = "row";
        row.append(head, valueCell(one), valueCell(two));
        row.classList.toggle("differs", one !== two);
        return row;
      });
    find("answers").tBodies[0].replaceChildren(...rows);
    const empty = lines.filter(([, one, two]) => one === null && two === null).map(([attribute]) => attribute);
    find("empty").textContent = empty.length ? "No value in either answer: " + empty.join(", ") : "";
  }

  function show(next) {
    place = next;
    const atEnd = place === questions.length;
    find("question").hidden = atEnd;
    find("end").hidden = !atEnd;
    const decided = countOf(["1", "2", "tie"]);
    const skipped = countOf(["skip"]);
    const open = questions.length - decided - skipped;
    const counts = `${decided} decided, ${skipped} skipped, ${open} open`;
    find("bar").max = questions.length;
    find("bar").value = decided + skipped;
    find("progress").textContent = (atEnd ? "" : `Product ${place + 1} of ${questions.length}: `) + counts;
    if (atEnd) {
      find("to-open").hidden = open === 0;
    } else {
      const question = questions[place];
      find("category").textContent = question.category;
      find("text").textContent = question.text;
      find("text").scrollTop = 0;
      showAnswers(question.lines);
      const choice = state.decisions[place + 1]?.choice;
      for (const button of document.querySelectorAll("[data-choice]"))
        button.setAttribute("aria-pressed", String(button.dataset.choice === choice));
      find("back").disabled = place === 0;
    }
    watched = 0;
    shownAt = performance.now();
    since = document.hidden ? null : shownAt;
    window.scrollTo(0, 0);
  }

  // at: the event's own time, which on a slow machine is earlier than now
  function decide(choice, at) {
    if (place === questions.length || at - shownAt < tooSoon) return;
    const now = performance.now();
    const before = state.decisions[place + 1]?.seconds ?? 0;
    const visit = (watched + (since === null ? 0 : now - since)) / 1000;
    const seconds = Math.round((before + visit) * 10) / 10;
    state.decisions[place + 1] = { choice, seconds, at: new Date().toISOString() };
    save();
    find("exported").textContent = "";
    find("how").open = false;
    show(place + 1);
  }

  function move(step) {
    show(Math.min(Math.max(place + step, 0), questions.length));
  }

  function exportDecisions() {
    const reviewer = state.reviewer.trim();
    if (!reviewer) {
      find("exported").textContent = "Please enter your name first.";
      find("reviewer").focus();
      return;
    }
    const decisions = Object.entries(state.decisions).map(([number, decision]) => ({
      question: Number(number),
      ...decision,
    }));
    const exported = new Date().toISOString();
    const file = { format: "hpd-review-1", page: content.id, reviewer, exported, decisions };
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(file, null, 2) + "\n"], { type: "application/json" }));
    link.download = `review-${content.id}-${reviewer.replace(/[^\p{L}\p{N}]+/gu, "-")}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    find("exported").textContent = `${decisions.length} of ${questions.length} exported.`;
  }

  function startOver() {
    if (!confirm("Throw away the name and all decisions on this page?")) return;
    state = { reviewer: "", decisions: {} };
    save();
    find("reviewer").value = "";
    find("exported").textContent = "";
    show(0);
  }

  const keys = {
    1: (at) => decide("1", at),
    2: (at) => decide("2", at),
    0: (at) => decide("tie", at),
    s: (at) => decide("skip", at),
    ArrowLeft: () => move(-1),
    ArrowRight: () => move(1),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (!Object.hasOwn(keys, key)) return;
    event.preventDefault();
    if (!event.repeat) keys[key](event.timeStamp);
  });
  document.addEventListener("visibilitychange", () => {
    const now = performance.now();
    if (since !== null) watched += now - since;
    since = document.hidden ? null : now;
  });
  for (const button of document.querySelectorAll("[data-choice]"))
    button.addEventListener("click", (event) => decide(button.dataset.choice, event.timeStamp));
  find("back").addEventListener("click", () => move(-1));
  find("forward").addEventListener("click", () => move(1));
  find("last").addEventListener("click", () => move(-1));
  find("to-open").addEventListener("click", () => show(firstOpen()));
  find("export").addEventListener("click", exportDecisions);
  find("start-over").addEventListener("click", startOver);
  find("reviewer").value = state.reviewer;
  find("reviewer").addEventListener("input", (event) => {
    state.reviewer = event.target.value;
    save();
  });
  find("how").open = place === 0;
  save(); // tells at once where nothing can be kept
  show(place);
})();
