// The map of ideas lights up what belongs to the box under the pointer or in focus. Without scripts it is a drawing with links.
for (const map of document.querySelectorAll("svg.idea-map")) {
  const lines = [...map.querySelectorAll("path[data-ends]")];
  const boxes = [...map.querySelectorAll("a[data-node]")];
  const light = (chosen) => {
    const near = new Set(chosen ? [chosen] : []);
    for (const line of lines) {
      const ends = line.dataset.ends.split(" ");
      const belongs = ends.includes(chosen);
      line.classList.toggle("lit", belongs);
      if (belongs) ends.forEach((end) => near.add(end));
    }
    map.classList.toggle("choosing", Boolean(chosen));
    for (const box of boxes) box.classList.toggle("lit", near.has(box.dataset.node));
  };
  for (const box of boxes) {
    for (const event of ["pointerenter", "focus"]) box.addEventListener(event, () => light(box.dataset.node));
    for (const event of ["pointerleave", "blur"]) box.addEventListener(event, () => light(null));
  }
}
