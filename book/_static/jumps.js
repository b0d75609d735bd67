// A jump lands on its target although formulas above the target are set, and change their height, only afterwards.
(() => {
  "use strict";
  let stop = () => {};

  function follow() {
    stop();
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const article = document.querySelector("article");
    if (!target || !article) return;
    const watch = new ResizeObserver(() => target.scrollIntoView({ behavior: "instant", block: "start" }));
    watch.observe(article);
    stop = () => watch.disconnect();
    for (const moved of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      addEventListener(moved, () => watch.disconnect(), { once: true, passive: true });
    }
    setTimeout(() => watch.disconnect(), 15000);
  }

  addEventListener("DOMContentLoaded", follow);
  addEventListener("hashchange", follow);
})();
