/* Chapter 14: what T steps of descent leave of the error along an eigenvalue, with one step size and with Chebyshev's steps. */
{
  const { number, range } = mvnbExplorer;
  const LOOPS = range(0, 40, 41);
  const GRID = range(0, 1, 201); // eigenvalues over the largest, L
  /** Chebyshev's polynomial of the first kind, inside [-1, 1] and to the right of it. */
  const first = (degree, x) => (x > 1 ? Math.cosh(degree * Math.acosh(x)) : Math.cos(degree * Math.acos(Math.max(-1, x))));

  mvnbExplorer("14-schedules", {
    title: "Steps and eigenvalues",
    controls: [
      { name: "loops", label: "loops T", min: 1, max: 40, step: 1, value: 4, play: 10 },
      { name: "step", label: "step size, in units of 1/L", min: 0.1, max: 2.2, step: 0.05, value: 1 },
      { name: "kappa", label: "condition number κ", min: 2, max: 128, value: 4, log: true, steps: 60 },
    ],
    compute({ loops, step, kappa }) {
      const low = 1 / kappa;
      const centre = (1 + low) / (1 - low);
      const largest = Math.max(Math.abs(1 - step), Math.abs(1 - step * low));
      return {
        grid: GRID,
        along: {
          constant: GRID.map((x) => (1 - step * x) ** loops),
          chebyshev: GRID.map((x) => first(loops, centre - (2 * x) / (1 - low)) / first(loops, centre)),
        },
        worst: {
          constant: LOOPS.map((t) => largest ** t),
          chebyshev: LOOPS.map((t) => 1 / first(t, centre)),
          printed: LOOPS.map((t) => Math.exp(-t / (2 * kappa))),
        },
        best: 2 / (1 + low),
      };
    },
    draw({ loops, step, kappa }, { along, worst, best }) {
      const curve = (values) => GRID.map((x, i) => [x, values[i]]);
      const line = (values) => LOOPS.map((t) => [t, values[t]]);
      const both = (key) => number(worst[key][loops], 2);
      return {
        readout:
          `κ = ${number(kappa)}, ${loops} loops: steps ${number(step)}/L leave ${both("constant")} of the error at worst, ` +
          `Chebyshev's steps ${both("chebyshev")}; the paper's bound for 1/L is ${both("printed")}. Best single step: ${number(best)}/L.`,
        panels: [
          {
            title: `Error left, T = ${loops}`,
            x: { label: "eigenvalue λ/L", domain: [0, 1.05] },
            y: { label: "factor p(λ)", domain: [-1.1, 1.1] },
            marks: [
              { vertical: 1 / kappa, style: "dotted", label: "μ" },
              { vertical: 1, style: "dotted", label: "L" },
              { line: [[0, 0], [1.05, 0]], style: "thin" },
              { line: curve(along.chebyshev), color: "blue", style: "dashed" },
              { line: curve(along.constant), color: "orange" },
            ],
          },
          {
            title: "Largest error between μ and L",
            x: { label: "loops T", domain: [0, 40] },
            y: { label: "what is left", domain: [1e-8, 10], log: true },
            marks: [
              { vertical: loops, style: "dotted" },
              { line: line(worst.printed), style: "dashed", label: "paper's bound" },
              { line: line(worst.constant), color: "orange", label: "one step size" },
              { line: line(worst.chebyshev), color: "blue", style: "dashed", label: "Chebyshev" },
              { points: [[loops, worst.constant[loops]]], color: "orange" },
              { points: [[loops, worst.chebyshev[loops]]], color: "blue" },
            ],
          },
        ],
      };
    },
  });
}
