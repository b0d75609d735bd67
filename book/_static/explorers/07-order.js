/* Chapter 07: losses of seven starts under the flow of two weights, p' = 2 p (c - p), and how their order turns round. */
{
  const { number, range } = mvnbExplorer;
  const STARTS = [0.02, 0.1, 0.3, 0.6, 1.5, 2.2, 3];
  const TIMES = range(0, 2, 101);
  const product = (start, demand, t) => demand / (1 - (1 - demand / start) * Math.exp(-2 * demand * t));

  mvnbExplorer("07-order", {
    title: "The order of losses turns round",
    controls: [
      { name: "time", label: "time t", min: 0, max: 2, step: 0.01, value: 0.35, play: 8, show: (t) => t.toFixed(2) },
      { name: "demand", label: "demand c", min: 0.7, max: 1.4, step: 0.05, value: 1 },
    ],
    compute({ time, demand }) {
      const loss = (start, t) => (product(start, demand, t) - demand) ** 2 / 2;
      const [before, now] = [0, time].map((t) => STARTS.map((start) => loss(start, t)));
      const pairs = STARTS.flatMap((_, i) => STARTS.slice(0, i).map((_, j) => [i, j]));
      return {
        starts: STARTS,
        times: TIMES,
        before,
        now,
        curves: STARTS.map((start) => TIMES.map((t) => loss(start, t))),
        swapped: pairs.filter(([i, j]) => (before[i] - before[j]) * (now[i] - now[j]) < 0).length,
      };
    },
    draw({ time, demand }, { before, now, curves, swapped }) {
      const look = STARTS.map((start) => (start < demand ? { color: "blue" } : { color: "orange", style: "dashed" }));
      const line = (i, until) => TIMES.map((t, k) => [t, curves[i][k]]).filter(([t]) => t <= until);
      const size = { label: "loss at time t", domain: [1e-4, 4], log: true };
      const named = { 0: "starts below c", 6: "above c" };
      return {
        readout:
          `At t = ${time.toFixed(2)}, ${swapped} of 21 pairs of starts have changed places. The smallest start has the loss ` +
          `${number(now[0], 2)}, after ${number(before[0], 2)} at time 0; the largest ${number(now.at(-1), 2)}, after ${number(before.at(-1), 2)}.`,
        panels: [
          {
            title: "Losses of seven starts",
            x: { label: "time t", domain: [0, 2] },
            y: { ...size, label: "loss" },
            marks: [
              { vertical: Math.LN2 / (2 * demand), style: "dotted", label: "log 2 / (2c)" },
              ...STARTS.map((_, i) => ({ line: line(i, 2), color: look[i].color, style: "thin dotted", label: named[i] })),
              ...STARTS.map((_, i) => ({ line: [...line(i, time), [time, now[i]]], ...look[i] })),
              ...STARTS.map((_, i) => ({ points: [[time, now[i]]], color: look[i].color })),
            ],
          },
          {
            title: `Before and after, t = ${time.toFixed(2)}`,
            x: { label: "loss at time 0", domain: [0.003, 4], log: true },
            y: size,
            marks: [
              { line: [[1e-4, 1e-4], [4, 4]], color: "grey", style: "thin", label: "time 0" },
              ...STARTS.map((start, i) => ({ points: [[before[i], now[i]]], color: look[i].color, label: `${start}` })),
            ],
          },
        ],
      };
    },
  });
}
