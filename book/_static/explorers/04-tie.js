/* Chapter 04: two weights that start alike, one point of m that decides which of them wins, and what its swap changes. */
{
  const { number, range } = mvnbExplorer;
  const SIZES = range(1, 5e5, 60, true).map((n) => 2 * Math.round(n) + 1);
  const odd = (m) => 2 * Math.floor(m / 2) + 1;
  /** Mean of the rarer over the commoner feature, and the weaker weight when the stronger one has reached `level`. */
  const tieRatio = (m, h) => ((1 + h) * m - (1 - h)) / ((1 + h) * m + (1 - h));
  const weaker = (r, start, power, level = 1) => {
    if (power === 1) return start + r * (level - start);
    if (power === 2) return start * (level / start) ** r;
    const p = 2 - power;
    return (r * level ** p + (1 - r) * start ** p) ** (1 / p);
  };
  const change = (weak, power) => Math.log1p(Math.exp(-(weak ** power))) - Math.log1p(Math.exp(-1));

  mvnbExplorer("04-tie", {
    title: "A tie that one point decides",
    controls: [
      { name: "power", label: "exponent q", value: "3",
        options: [["1", "1, linear"], ["2", "2"], ["3", "3, a network"], ["4", "4"], ["6", "6"]] },
      { name: "m", label: "training points m", min: 10, max: 1e6, value: 100, log: true, integer: true, steps: 50,
        show: (m) => number(odd(m)) },
      { name: "start", label: "start s", min: 1e-4, max: 0.1, value: 0.01, log: true, steps: 60 },
      { name: "overlap", label: "overlap h", min: 0, max: 0.9, step: 0.05, value: 0.5 },
    ],
    compute({ power, m, start, overlap }) {
      const q = Number(power);
      const sizes = [odd(m), ...SIZES];
      const levels = range(start, 1, 80, true);
      return {
        sizes,
        levels,
        weak: levels.map((level) => weaker(tieRatio(odd(m), overlap), start, q, level)),
        change: sizes.map((n) => change(weaker(tieRatio(n, overlap), start, q), q)),
        linear: sizes.map((n) => change(weaker(tieRatio(n, overlap), start, 1), 1)),
      };
    },
    draw({ power, start }, { sizes, levels, weak, change, linear }) {
      const over = (values) => SIZES.map((n, i) => [n, values[i + 1]]);
      const axis = { domain: [start, 1.15], log: true };
      return {
        readout:
          `With ${number(sizes[0])} points the weaker weight ends at ${number(weak.at(-1))}. The swap of one of them changes the loss ` +
          `at (1, 0) by ${number(change[0], 2)}, in the linear model by ${number(linear[0], 2)}.`,
        panels: [
          {
            title: `The two weights on their way, q = ${power}`,
            x: { label: "u₁", ...axis },
            y: { label: "u₂", ...axis },
            marks: [
              { line: [[axis.domain[0], axis.domain[0]], [2, 2]], color: "grey", style: "thin dotted", label: "alike" },
              { line: levels.map((level, i) => [level, weak[i]]), color: "blue", label: "trained on S" },
              { line: levels.map((level, i) => [weak[i], level]), color: "orange", style: "dashed", label: "on S′" },
              { points: [[1, weak.at(-1)]], color: "blue" },
              { points: [[weak.at(-1), 1]], color: "orange" },
            ],
          },
          {
            title: "What the swap of one point changes",
            x: { label: "training points m", domain: [3, 1e6], log: true },
            y: { label: "change of the loss at (1, 0)", domain: [1e-7, 3], log: true },
            marks: [
              { line: over(linear), style: "dashed", label: "linear, q = 1" },
              { line: over(change), color: "orange", label: `q = ${power}, s = ${number(start)}` },
              { points: [[sizes[0], change[0]]], color: "orange" },
              { points: [[sizes[0], linear[0]]] },
            ],
          },
        ],
      };
    },
  });
}
