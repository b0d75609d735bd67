/* Explorers: figures with knobs. A page's own script calls mvnbExplorer(name, { controls, compute, draw }); here stand the
   controls, the drawing of two panels and a few functions that more than one of them needs. Without scripts the page shows a picture that
   picture(name) has drawn, in the same place and of the same size. */
(() => {
  const known = {};

  // -- numbers ------------------------------------------------------------------------------------------------------

  const raised = (n) => `10${n < 0 ? "⁻" : ""}${[...String(Math.abs(n))].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
  /** A number as a reader wants it: a few digits, powers of ten where it is very large or small. */
  const number = (value, digits = 3) => {
    const size = Math.abs(value);
    if (size && (size >= 1e7 || size < 1e-4)) {
      let power = Math.floor(Math.log10(size));
      let lead = Number((value / 10 ** power).toPrecision(Math.min(2, digits)));
      if (lead === 10) [lead, power] = [1, power + 1];
      return lead === 1 ? raised(power) : `${lead}·${raised(power)}`;
    }
    const rounded = Number(value.toPrecision(digits));
    return (size >= 1e3 ? rounded.toLocaleString("en-GB") : String(rounded)).replace("-", "−");
  };
  const range = (low, high, count, log) =>
    Array.from({ length: count }, (_, i) => {
      const t = i / (count - 1);
      return log ? low * (high / low) ** t : low + (high - low) * t;
    });
  /** The normal distribution function: a series near 0, a continued fraction in the tails. */
  const normal = (x) => {
    const size = Math.abs(x);
    const density = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
    if (size < 3) {
      let [term, sum] = [x, x];
      for (let n = 3; Math.abs(term) > 1e-17 * Math.abs(sum); n += 2) sum += term *= (x * x) / n;
      return 0.5 + density * sum;
    }
    let tail = size;
    for (let n = 60; n > 0; n--) tail = size + n / tail;
    return x > 0 ? 1 - density / tail : density / tail;
  };

  // -- drawing ------------------------------------------------------------------------------------------------------

  // The palette of mvnb.figures, and its lighter counterpart for a dark page.
  const LIGHT = { blue: "#0072B2", orange: "#D55E00", green: "#009E73", pink: "#CC79A7", grey: "#888888", brown: "#8C510A" };
  const DARK = { blue: "#5ab4e8", orange: "#ff9248", green: "#3fcfa2", pink: "#e3a3c7", grey: "#a3a3a3", brown: "#d9a066" };
  Object.assign(LIGHT, { sky: "#56B4E9", yellow: "#E69F00", ink: "#333333", rule: "#e6e6e6", ground: "#ffffff" });
  Object.assign(DARK, { sky: "#7cc7f0", yellow: "#f0b93c", ink: "#d8d8d8", rule: "#3a3d42", ground: "#121212" });
  const variables = (colors) => Object.entries(colors).map(([name, value]) => `--x-${name}:${value}`).join(";");
  const STYLE = [
    ".explorer-picture{font:12px Arial,'DejaVu Sans',sans-serif}",
    ".explorer-picture text{fill:var(--x-ink)}",
    ".explorer-picture .title{font-size:13px;font-weight:bold}",
    ".explorer-picture .grid{stroke:var(--x-rule);fill:none}.explorer-picture .axis{stroke:var(--x-ink);fill:none}",
    ".explorer-picture .line{stroke:var(--c);fill:none;stroke-width:2;stroke-linejoin:round}",
    ".explorer-picture .dashed{stroke-dasharray:6 4}.explorer-picture .dotted{stroke-dasharray:2 3}",
    ".explorer-picture .thin{stroke-width:1.2}.explorer-picture .dot{fill:var(--c);stroke:var(--x-ground)}",
    ".explorer-picture .cell{fill:var(--c);stroke:none}",
    ".explorer-picture .label{fill:color-mix(in srgb,var(--c) 72%,var(--x-ink));stroke:var(--x-ground);stroke-width:3px;" +
      "paint-order:stroke;stroke-linejoin:round}",
    ...Object.keys(LIGHT).map((name) => `.explorer-picture .${name}{--c:var(--x-${name})}`),
  ].join("");

  const WIDTH = 360;
  const HEIGHT = 280;
  const BOX = { left: 52, right: 350, top: 28, bottom: 236 };
  const round = (value) => String(Math.round(value * 10) / 10);
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");

  const axis = ({ domain: [low, high], log, ticks }, from, to) => {
    const f = log ? Math.log10 : (v) => v;
    const span = f(high) - f(low);
    const place = (v) => Math.max(-2000, Math.min(2000, from + ((f(v) - f(low)) / span) * (to - from)));
    if (ticks) return { place, ticks };
    const between = (first, step) => range(first, first + step * Math.floor((f(high) - first) / step + 1e-9), 1 +
      Math.floor((f(high) - first) / step + 1e-9));
    if (log && span >= 2) {
      const step = Math.ceil(span / 5);
      return { place, ticks: between(Math.ceil(f(low) / step - 1e-9) * step, step).map((e) => 10 ** e) };
    }
    if (log) {
      const all = between(Math.floor(f(low)), 1).flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e));
      return { place, ticks: all.filter((v) => v >= low * 0.999 && v <= high * 1.001) };
    }
    const rough = span / 5;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough * 0.99);
    return { place, ticks: between(Math.ceil(low / step - 1e-9) * step, step).map((v) => Number(v.toPrecision(12))) };
  };
  const tick = (value, log) => {
    const power = Math.log10(value);
    return log && (power > 3.5 || power < -2.5) && Number.isInteger(Math.round(power * 1e9) / 1e9) ? raised(Math.round(power)) : number(value);
  };

  /** The place beside a mark where its label is least in the way: inside the plot, off other labels and lines. */
  const settle = (text, own, obstacles, taken) => {
    // About the width of Arial, so that the picture does not depend on the machine's fonts.
    const letter = (c) => (/[mwMW%→]/.test(c) ? 9.8 : /[-iljtfrI.,:;|/() ]/.test(c) ? 3.9 : /[A-Z]/.test(c) ? 8.3 : 6.8);
    const [width, height] = [[...text].reduce((sum, c) => sum + letter(c), 0), 13];
    let best = { cost: Infinity };
    own.forEach(([x, y], i) => {
      for (const [rank, [dx, dy]] of [[-1, -7], [0, -7], [-1, 15], [0, 15], [-0.5, -9], [-0.5, 17]].entries()) {
        const gap = dx === -0.5 ? 0 : dx === 0 ? 5 : -5;
        const box = { left: x + dx * width + gap, top: y + dy - height + 3 };
        const [right, bottom] = [box.left + width, box.top + height];
        if (box.left < BOX.left + 3 || right > BOX.right || box.top < BOX.top || bottom > BOX.bottom - 2) continue;
        const hit = ([a, b]) => a > box.left - 2 && a < right + 2 && b > box.top - 1 && b < bottom + 1;
        const clash = taken.filter((t) => t.left < right + 4 && box.left < t.right + 4 && t.top < bottom && box.top < t.bottom);
        const cost = 1000 * clash.length + 8 * obstacles.filter(hit).length + (10 * i) / own.length + rank;
        if (cost < best.cost) best = { cost, left: box.left, top: box.top, right, bottom };
      }
    });
    if (best.cost === Infinity) return "";
    taken.push(best);
    return { x: best.left, y: best.bottom - 3 };
  };

  /** Points at most 4 apart on the way along a polyline, inside the plot: what labels keep off. */
  const trace = (way) => {
    const points = [];
    way.forEach(([x, y], i) => {
      const [a, b] = i ? way[i - 1] : [x, y];
      const count = Math.max(1, Math.ceil(Math.min(400, Math.hypot(x - a, y - b)) / 4));
      for (let n = 1; n <= count; n++) points.push([a + ((x - a) * n) / count, b + ((y - b) * n) / count]);
    });
    return points.filter(([x, y]) => x >= BOX.left && x <= BOX.right && y >= BOX.top && y <= BOX.bottom);
  };

  const panel = ({ title, x, y, marks }) => {
    const [across, up] = [axis(x, BOX.left, BOX.right), axis(y, BOX.bottom, BOX.top)];
    const at = ([a, b]) => [across.place(a), up.place(b)];
    const path = (way) => way.map(([a, b], i) => `${i ? "L" : "M"}${round(a)} ${round(b)}`).join("");
    const labels = [];
    const obstacles = [];
    let [inside, above, grid, text] = ["", "", "", ""];
    for (const mark of marks) {
      const look = `${mark.color ?? "ink"} ${mark.style ?? ""}`.trim();
      let way = [];
      if (mark.cells) {
        const [columns, rows] = [mark.cells.x.map(across.place), mark.cells.y.map(up.place)];
        const levels = Array.from({ length: 11 }, () => "");
        mark.cells.values.forEach((row, j) => row.forEach((value, i) => {
          const [a, b] = [columns[i], rows[j]];
          levels[Math.round(10 * value)] += `M${round(a)} ${round(b)}H${round(columns[i + 1])}V${round(rows[j + 1])}H${round(a)}z`;
        }));
        levels.forEach((d, level) => {
          if (d && level) inside += `<path class="cell ${look}" fill-opacity="${level / 12}" d="${d}"/>`;
        });
      } else if (mark.line) {
        const finite = mark.line.map(at).filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
        inside += `<path class="line ${look}" d="${path(finite)}"/>`;
        way = trace(finite).reverse();
      } else if (mark.points || mark.stems) {
        const all = (mark.points ?? mark.stems).map(at);
        if (mark.stems) inside += `<path class="line thin ${look}" d="${all.map((p) => path([[p[0], up.place(0)], p])).join("")}"/>`;
        way = trace(all.flatMap((p) => [p, p])).filter(([a, b]) => all.some((p) => p[0] === a && p[1] === b));
        above += way.filter((_, i) => i % 2).map(([a, b]) =>
          `<circle class="dot ${look}" cx="${round(a)}" cy="${round(b)}" r="${mark.stems ? 3.5 : 4.5}"/>`).join("");
      } else {
        const ends = "vertical" in mark ? y.domain.map((v) => [mark.vertical, v]) : x.domain.map((v) => [v, mark.horizontal]);
        inside += `<path class="line thin ${look}" d="${path(ends.map(at))}"/>`;
        way = trace(ends.map(at)).reverse();
      }
      if (!mark.cells) obstacles.push(...way);
      if (mark.label) labels.push([mark, way]);
    }
    const taken = [];
    for (const [mark, way] of labels) {
      const best = settle(mark.label, mark.at ? [at(mark.at)] : way, obstacles, taken);
      if (best) above += `<text class="label ${mark.color ?? "ink"}" x="${round(best.x)}" y="${round(best.y)}">${escape(mark.label)}</text>`;
    }
    for (const value of across.ticks) {
      const a = round(across.place(value));
      grid += `M${a} ${BOX.top}V${BOX.bottom}`;
      text += `<text text-anchor="middle" x="${a}" y="${BOX.bottom + 16}">${tick(value, x.log)}</text>`;
    }
    for (const value of up.ticks) {
      grid += `M${BOX.left} ${round(up.place(value))}H${BOX.right}`;
      text += `<text text-anchor="end" x="${BOX.left - 6}" y="${round(up.place(value) + 4)}">${tick(value, y.log)}</text>`;
    }
    const [middle, centre] = [(BOX.left + BOX.right) / 2, (BOX.top + BOX.bottom) / 2];
    const [wide, high] = [BOX.right - BOX.left, BOX.bottom - BOX.top];
    return (
      `<path class="grid" d="${grid}"/>` +
      `<svg x="${BOX.left}" y="${BOX.top}" width="${wide}" height="${high}" viewBox="${BOX.left} ${BOX.top} ${wide} ${high}">` +
      `${inside}</svg><path class="axis" d="M${BOX.left} ${BOX.top}V${BOX.bottom}H${BOX.right}"/>${text}${above}` +
      `<text class="title" x="${BOX.left}" y="16">${escape(title)}</text>` +
      `<text text-anchor="middle" x="${middle}" y="${HEIGHT - 8}">${escape(x.label)}</text>` +
      `<text text-anchor="middle" transform="translate(12 ${centre}) rotate(-90)">${escape(y.label)}</text>`
    );
  };

  const paint = (explorer, values) => {
    const { panels, readout } = explorer.draw(values, explorer.compute(values));
    return { readout, drawn: panels.map(panel) };
  };

  // -- controls -----------------------------------------------------------------------------------------------------

  // A logarithmic slider moves in `steps` equal ratios between its ends; its value keeps three digits.
  const steps = (control) => control.steps ?? 60;
  const valueAt = (control, position) => {
    if (control.options) return position;
    if (!control.log) return Number(position);
    const value = control.min * (control.max / control.min) ** (position / steps(control));
    return control.integer ? Math.round(Number(value.toPrecision(3))) : Number(value.toPrecision(3));
  };
  const positionOf = (control) =>
    control.log ? Math.round((steps(control) * Math.log(control.value / control.min)) / Math.log(control.max / control.min)) : control.value;
  const defaults = ({ controls }) => Object.fromEntries(controls.map((one) => [one.name, valueAt(one, positionOf(one))]));

  const GLYPHS = { false: "M2 0 12 6 2 12z", true: "M1 0H4V12H1zM8 0H11V12H8z" };
  /** A button that takes a slider to its end in `control.play` seconds, in eight leaps for those who want no motion. It never
      starts by itself; it goes on from where the slider was left, and from the start if that is the end or the default. */
  const player = (control, input, update, live) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "explorer-play" });
    button.setAttribute("aria-label", `Play: ${control.label}`);
    const [low, high] = [Number(input.min), Number(input.max)];
    let frame = 0;
    const show = () => {
      button.setAttribute("aria-pressed", Boolean(frame));
      button.innerHTML = `<svg viewBox="0 0 12 12" aria-hidden="true"><path fill="currentColor" d="${GLYPHS[Boolean(frame)]}"/></svg>`;
      live(!frame); // a line of text that changes sixty times a second is not to be read out
    };
    const stop = () => {
      cancelAnimationFrame(frame);
      frame = 0;
      show();
    };
    const start = () => {
      const here = Number(input.value);
      const from = [high, Number(positionOf(control))].includes(here) ? 0 : (here - low) / (high - low);
      const leaps = matchMedia("(prefers-reduced-motion: reduce)").matches ? 8 : Infinity;
      const length = 1000 * control.play;
      let began;
      const step = (now) => {
        began ??= now - from * length;
        const share = Math.min(1, (now - began) / length);
        const before = input.value;
        input.value = low + (leaps === Infinity ? share : Math.floor(leaps * share + 1e-9) / leaps) * (high - low);
        if (share < 1) frame = requestAnimationFrame(step);
        else stop();
        if (input.value !== before || share === 1) update();
      };
      frame = requestAnimationFrame(step);
      show();
    };
    button.onclick = () => {
      if (!frame) return start();
      stop();
      update();
    };
    input.addEventListener("input", stop);
    show();
    return { button, stop };
  };

  const build = (control, id, update, live) => {
    const cell = document.createElement("div");
    cell.className = "explorer-slot";
    const label = document.createElement("label");
    label.htmlFor = id;
    label.textContent = control.label;
    const input = document.createElement(control.options ? "select" : "input");
    input.id = id;
    cell.append(label);
    if (control.options) {
      input.append(...control.options.map(([value, text]) => new Option(text, value)));
    } else {
      const shown = document.createElement("output");
      shown.htmlFor = id;
      shown.setAttribute("aria-live", "off"); // the slider says its value itself
      cell.append(shown);
      const ends = control.log ? { min: 0, max: steps(control), step: 1 } : control;
      Object.assign(input, { type: "range", min: ends.min, max: ends.max, step: ends.step });
    }
    const play = control.play && player(control, input, update, live);
    if (play) {
      const row = document.createElement("div");
      row.className = "explorer-run";
      row.append(play.button, input);
      cell.append(row);
    } else {
      cell.append(input);
    }
    input.addEventListener("input", update);
    const read = () => {
      const value = valueAt(control, input.value);
      if (!control.options) {
        const text = control.show ? control.show(value) : number(value) + (control.unit ? ` ${control.unit}` : "");
        cell.querySelector("output").textContent = text;
        input.setAttribute("aria-valuetext", text);
      }
      return value;
    };
    const reset = () => {
      if (play) play.stop();
      input.value = positionOf(control);
    };
    return { cell, read, reset };
  };

  const mount = (figure, name, explorer) => {
    const part = (kind) => figure.querySelector(`.explorer-${kind}`);
    const update = () => {
      const values = Object.fromEntries(explorer.controls.map((control, i) => [control.name, built[i].read()]));
      const { drawn, readout } = paint(explorer, values);
      const body = drawn.map((one) => `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}">${one}</svg>`).join("");
      const said = escape(`${explorer.title}. ${readout}`);
      part("stage").innerHTML = `<div class="explorer-picture" role="img" aria-label="${said}">${body}</div>`;
      part("readout").textContent = readout;
    };
    const live = (on) => part("readout").setAttribute("aria-live", on ? "polite" : "off");
    const built = explorer.controls.map((control) => build(control, `explorer-${name}-${control.name}`, update, live));
    const reset = () => {
      built.forEach((one) => one.reset());
      update();
    };
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: "Reset", onclick: reset });
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `Explorer: ${explorer.title}`);
    part("controls").replaceChildren(...built.map((one) => one.cell));
    part("reset").replaceChildren(button);
    live(true);
    reset();
  };

  const sheet = document.createElement("style");
  sheet.textContent = `${STYLE}.explorer-picture{${variables(LIGHT)};--x-ground:var(--pst-color-background,#fff)}html[data-theme=dark] ` +
    `.explorer-picture{${variables(DARK)};--x-ground:var(--pst-color-background)}`;
  document.head.append(sheet);

  window.mvnbExplorer = (name, explorer) => {
    known[name] = explorer;
    document.querySelectorAll(`[data-explorer="${name}"]`).forEach((figure) => mount(figure, name, explorer));
  };
  /** The figure at its defaults as a file that stands alone, in both colour schemes; its view #narrow is for phones. */
  const picture = (name) => {
    // What <use> copies has no such ancestor.
    const style = `${STYLE.replaceAll(".explorer-picture ", "")}svg{${variables(LIGHT)}}@media (prefers-color-scheme:dark){svg{${variables(DARK)}}}`;
    const { drawn, readout } = paint(known[name], defaults(known[name]));
    return (
      `<svg class="explorer-picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${2 * WIDTH} ${HEIGHT}" ` +
      `data-controls="${known[name].controls.length}"><desc>${escape(readout)}</desc><style>${style}</style>` +
      `<view id="narrow" viewBox="0 ${2 * HEIGHT} ${WIDTH} ${2 * HEIGHT}"/><g id="a">${drawn[0]}</g>` +
      `<g id="b" transform="translate(${WIDTH})">${drawn[1]}</g><use href="#a" y="${2 * HEIGHT}"/>` +
      `<use href="#b" x="${-WIDTH}" y="${3 * HEIGHT}"/></svg>\n`
    );
  };
  Object.assign(window.mvnbExplorer, { known, defaults, picture, number, range, normal, LIGHT });
})();
