/* Filters and sorting for the table of claims. Without it the table is whole and in the order of the chapters. */
(() => {
  const table = document.querySelector("table.scoreboard.claims");
  if (!table) return;
  const COLUMN = { chapter: 0, claim: 1, kind: 3, verdict: 7 };
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const text = (row, column) => row.cells[column].textContent.trim();
  const verdict = (row) => row.cells[COLUMN.verdict].querySelector("span").textContent.replace(/^\S+\s/, "");
  const facets = {
    chapter: (row) => text(row, COLUMN.chapter),
    kind: (row) => text(row, COLUMN.kind),
    origin: (row) => [...row.classList].find((name) => name.startsWith("origin-")).slice(7),
    headline: (row) => (row.classList.contains("headline") ? "yes" : "no"),
    evidence: (row) => (row.classList.contains("kept") ? "kept run" : "live"),
    verdict,
  };
  const titles = { chapter: "Chapter", kind: "Kind", origin: "Origin", headline: "Headline", evidence: "Evidence", verdict: "Verdict" };

  // A reader's choice is kept in the address, so that a view can be linked to.
  const asked = new URLSearchParams(location.search);
  const form = document.createElement("form");
  form.className = "scoreboard-controls";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the claims");
  form.addEventListener("submit", (event) => event.preventDefault());

  const labelled = (title, control) => {
    const label = document.createElement("label");
    label.append(title, control);
    form.append(label);
    return control;
  };
  const words = labelled("Words", document.createElement("input"));
  words.type = "search";
  words.name = "words";
  words.value = asked.get("words") ?? "";
  const selects = {};
  for (const [name, value] of Object.entries(facets)) {
    const select = labelled(titles[name], document.createElement("select"));
    select.name = name;
    const choices = [...new Set(rows.map(value))].sort();
    select.append(new Option("all", ""), ...choices.map((choice) => new Option(choice, choice)));
    if (choices.includes(asked.get(name))) select.value = asked.get(name);
    selects[name] = select;
  }
  const count = document.createElement("output");
  form.append(count);
  (table.closest(".pst-scrollable-table-container") ?? table).before(form);

  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const content = row.textContent.toLowerCase();
      const fits =
        wanted.every((word) => content.includes(word)) &&
        Object.entries(selects).every(([name, select]) => !select.value || facets[name](row) === select.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length} claims`;
    const view = new URLSearchParams();
    for (const control of [words, ...Object.values(selects)]) if (control.value) view.set(control.name, control.value);
    history.replaceState(null, "", (view.size ? `?${view}` : location.pathname) + location.hash);
  };
  form.addEventListener("input", filter);

  const heads = [...table.tHead.rows[0].cells];
  const sort = (column, down) => {
    const order = new Intl.Collator("en", { numeric: true });
    const key = column === COLUMN.verdict ? verdict : (row) => text(row, column);
    const sorted = [...rows].sort((a, b) => order.compare(key(a), key(b)) * (down ? -1 : 1));
    body.append(...sorted);
    heads.forEach((head, i) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  for (const column of Object.values(COLUMN)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heads[column].childNodes);
    button.addEventListener("click", () => sort(column, heads[column].getAttribute("aria-sort") === "ascending"));
    heads[column].append(button);
  }
  filter();
})();
