/* Chapter 12: accuracy elsewhere of a rule with two weights, exactly, by the inversion of Gil-Pelaez. */
{
  const { number, range } = mvnbExplorer;
  const SIZES = range(2 ** 0.25, 64, 61, true); // d / r
  const GAMMAS = range(0.1, 0.46, 25);
  const EDGES = range(2 ** 0.25, 64, 25, true);
  const middles = (edges) => edges.slice(1).map((edge, i) => Math.sqrt(edge * edges[i]));

  /** Probability of a positive margin: r invariant features of weight `ratio`, n others of weight 1 and correlation gamma. */
  const accuracy = (r, n, ratio, gamma) => {
    const deviation = Math.sqrt((ratio ** 2 * r) / 12 + n * (1 / 3 - gamma ** 2));
    const mean = (ratio * r) / 2 + n * gamma;
    const step = Math.PI / (Math.abs(mean) + 14 * deviation);
    let sum = mean / 2;
    for (let t = step; t < 12 / deviation; t += step) {
      const half = (ratio * t) / 2;
      const [real, imaginary] = [Math.sin(t) / t, (4 * gamma * Math.sin(t / 2) ** 2) / t];
      const size = (Math.sin(half) / half) ** r * Math.hypot(real, imaginary) ** n;
      sum += (size * Math.sin(r * half + n * Math.atan2(imaginary, real))) / t;
    }
    return Math.min(1, Math.max(0, 0.5 + (step / Math.PI) * sum));
  };

  mvnbExplorer("12-transition", {
    title: "Where weight decay goes wrong",
    controls: [
      { name: "size", label: "features per invariant one, d/r", min: 2 ** 0.25, max: 64, value: 4, log: true, steps: 69 },
      { name: "gamma", label: "correlation γ", min: 0.1, max: 0.45, step: 0.01, value: 0.3 },
      { name: "r", label: "invariant features r", min: 8, max: 100, step: 4, value: 16 },
      { name: "factor", label: "2γ α/β (1: strong decay)", min: 1, max: 4, step: 0.1, value: 1 },
    ],
    compute({ size, gamma, r, factor }) {
      const others = (x) => Math.max(1, Math.round(r * (x - 1)));
      const sizes = [size, ...SIZES];
      const [gammas, rows] = [middles(GAMMAS), middles(EDGES)];
      return {
        sizes,
        gammas,
        rows,
        ratio: factor / (2 * gamma),
        star: r + r / (4 * gamma ** 2),
        here: sizes.map((x) => accuracy(r, others(x), factor / (2 * gamma), gamma)),
        elsewhere: sizes.map((x) => accuracy(r, others(x), factor / (2 * gamma), -gamma)),
        map: rows.map((x) => gammas.map((g) => accuracy(r, others(x), factor / (2 * g), -g))),
      };
    },
    draw({ size, gamma, r, factor }, { ratio, star, here, elsewhere, map }) {
      const over = (values) => SIZES.map((x, i) => [x, values[i + 1]]);
      const place = GAMMAS.map((g) => [g, 1 + factor / (4 * g ** 2)]);
      return {
        readout:
          `d = ${number(r + Math.max(1, Math.round(r * (size - 1))))}, d* = ${number(star)}, α/β = ${number(ratio)}. Right where we ` +
          `train in ${number(100 * here[0])} % of the cases, elsewhere in ${number(100 * elsewhere[0])} %.`,
        panels: [
          {
            title: `r = ${r}, γ = ${number(gamma)}`,
            x: { label: "d/r", domain: [2 ** 0.25, 64], log: true, ticks: [2, 5, 10, 20, 50] },
            y: { label: "accuracy", domain: [0, 1.05] },
            marks: [
              { line: over(here), color: "green", style: "dashed", label: "where we train" },
              { line: over(elsewhere), color: "blue", label: "elsewhere" },
              { vertical: star / r, label: "d*" },
              { vertical: size, style: "dotted" },
              { points: [[size, here[0]]], color: "green" },
              { points: [[size, elsewhere[0]]], color: "blue" },
            ],
          },
          {
            title: "Accuracy elsewhere: blue 1, blank 0",
            x: { label: "correlation γ", domain: [0.1, 0.46], ticks: [0.1, 0.2, 0.3, 0.4] },
            y: { label: "d/r", domain: [2 ** 0.25, 64], log: true, ticks: [2, 5, 10, 20, 50] },
            marks: [
              { cells: { x: GAMMAS, y: EDGES, values: map }, color: "blue" },
              { line: place, label: factor > 1 ? "mean margin 0" : "d*" },
              { line: GAMMAS.map((g) => [g, 1 + 1 / g ** 2]), style: "dotted", label: "Proposition 6.3", at: [0.22, 1 + 1 / 0.22 ** 2] },
              { points: [[gamma, size]], color: "orange" },
            ],
          },
        ],
      };
    },
  });
}
