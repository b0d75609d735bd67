// A reader who came by a reading path is led along it: a bar above the chapter, and previous and next below.
(() => {
  const name = new URLSearchParams(location.search).get("path");
  const path = (window.mvnbPaths ?? []).find((one) => one.name === name);
  const here = path?.chapters.findIndex((one) => location.pathname.endsWith("/" + one.page)) ?? -1;
  if (here < 0) return;
  const link = (chapter, text) => {
    const anchor = document.createElement("a");
    anchor.href = chapter.page + "?path=" + name;
    anchor.textContent = text;
    return anchor;
  };
  const [before, after] = [path.chapters[here - 1], path.chapters[here + 1]];
  const bar = document.createElement("nav");
  bar.className = "path-bar";
  bar.setAttribute("aria-label", path.title);
  const leave = document.createElement("a");
  leave.href = location.pathname;
  leave.textContent = "leave the path";
  bar.append(`${path.title}, ${here + 1} of ${path.chapters.length}. `);
  if (before) bar.append("Before: ", link(before, before.title), ". ");
  bar.append(after ? "Next: " : "This is the last one; ", after ? link(after, after.title) : "", after ? "; " : "", leave, ".");
  document.querySelector("article").prepend(bar);

  // The theme's own previous and next follow the contents; on a path they follow the path.
  for (const [side, chapter] of [["left-prev", before], ["right-next", after]]) {
    const anchor = document.querySelector(`.prev-next-area a.${side}`);
    if (!anchor) continue;
    anchor.hidden = !chapter;
    if (!chapter) continue;
    anchor.href = chapter.page + "?path=" + name;
    anchor.title = "";
    anchor.querySelector(".prev-next-title").textContent = chapter.title;
  }
})();
