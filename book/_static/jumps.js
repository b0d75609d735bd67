// A jump lands on its target although formulas above the target are set, and change their height, only afterwards.
(() => {
  "use strict";
  let target, timer;
  const watch = new ResizeObserver(() => target.scrollIntoView({ behavior: "instant", block: "start" }));

  function stop() {
    clearTimeout(timer);
    watch.disconnect();
  }

  function follow() {
    stop();
    target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const article = document.querySelector("article");
    if (!target || !article) return;
    watch.observe(article);
    timer = setTimeout(stop, 15000);
  }

  addEventListener("DOMContentLoaded", follow);
  addEventListener("hashchange", follow);
  for (const moved of ["wheel", "touchmove", "keydown", "pointerdown"]) addEventListener(moved, stop, { passive: true });
})();
