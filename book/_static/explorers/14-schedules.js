/* Chapter 14: what T loops leave of the error in the worst direction, for four kinds of steps, and two bounds. */
{
  const { number, range } = mvnbExplorer;
  const LOOPS = range(0, 40, 41);
  const KINDS = [
    ["constant", "blue", "", "1/L"],
    ["middle", "grey", "", "2/(L + μ)"],
    ["chebyshev", "orange", "", "Chebyshev"],
    ["memory", "pink", "dashed", "memory"],
  ];
  /** Chebyshev's polynomial of the first kind, inside [-1, 1] and to the right of it. */
  const first = (degree, x) => (x > 1 ? Math.cosh(degree * Math.acosh(x)) : Math.cos(degree * Math.acos(Math.max(-1, x))));
  const heavyBall = (x, gamma, loops) => {
    let [before, now] = [1, loops ? 1 - x : 1];
    for (let t = 1; t < loops; t++) [before, now] = [now, (1 + gamma - x) * now - gamma * before];
    return now;
  };

  mvnbExplorer("14-schedules", {
    title: "Schedules of steps",
    controls: [
      { name: "loops", label: "loops T", min: 1, max: 40, step: 1, value: 8, play: 10 },
      { name: "ratio", label: "examples a dimension, n/d", min: 2 ** 0.25, max: 64, value: 8, log: true, steps: 69 },
      { name: "dim", label: "dimension d", min: 1, max: 64, step: 1, value: 4 },
    ],
    compute({ loops, ratio, dim }) {
      const root = Math.sqrt(1 / ratio);
      const [low, high] = [(1 - root) ** 2, (1 + root) ** 2]; // where the spectrum of H/n ends
      const kappa = high / low;
      const spectrum = range(0, high, 281);
      const centre = (high + low) / (high - low);
      const earlier = (t) => (8 * t * dim ** 2 * 4 ** t) / Math.sqrt(ratio * dim);
      return {
        spectrum,
        low,
        high,
        kappa,
        worst: {
          printed: LOOPS.map((t) => Math.exp(-t / (2 * kappa))),
          constant: LOOPS.map((t) => (1 - 1 / kappa) ** t),
          middle: LOOPS.map((t) => ((kappa - 1) / (kappa + 1)) ** t),
          chebyshev: LOOPS.map((t) => 1 / first(t, centre)),
          memory: LOOPS.map((t) => root ** t * (t + 1 + root * t)),
          earlier: LOOPS.slice(1).map(earlier),
        },
        along: {
          constant: spectrum.map((x) => (1 - x / high) ** loops),
          middle: spectrum.map((x) => (1 - (2 * x) / (low + high)) ** loops),
          chebyshev: spectrum.map((x) => first(loops, centre - (2 * x) / (high - low)) / first(loops, centre)),
          memory: spectrum.map((x) => heavyBall(x, 1 / ratio, loops)),
        },
        asked: (8 * loops * dim ** 2 * 4 ** loops) ** 2,
      };
    },
    draw({ loops, ratio, dim }, { spectrum, low, high, kappa, worst, along, asked }) {
      const { printed, earlier, ...kinds } = worst;
      const line = (values) => LOOPS.map((t) => [t, values[t]]);
      const size = { label: "what is left", domain: [1e-10, 1e3], log: true };
      return {
        readout:
          `κ = ${number(kappa)}. After ${loops} loops the worst direction keeps ${number(kinds.constant[loops], 2)} of its error with ` +
          `steps 1/L, ${number(kinds.chebyshev[loops], 2)} with Chebyshev's, ${number(kinds.memory[loops], 2)} with memory. At d = ${dim} ` +
          `the earlier bound asks for ${number(asked, 2)} examples.`,
        panels: [
          {
            title: "Error in the worst direction",
            x: { label: "loops T", domain: [0, 40] },
            y: size,
            marks: [
              { vertical: loops, style: "dotted" },
              { line: earlier.map((value, i) => [i + 1, value]), color: "grey", style: "dotted", label: "earlier bound" },
              { line: line(printed), style: "dashed", label: "printed bound" },
              ...KINDS.map(([key, color, style, label]) => ({ line: line(kinds[key]), color, style, label })),
              ...KINDS.map(([key, color]) => ({ points: [[loops, kinds[key][loops]]], color })),
            ],
          },
          {
            title: `The polynomials |p(λ)|, T = ${loops}`,
            x: { label: `eigenvalue λ/n  (n = ${number(ratio)} d)`, domain: [0, 1.03 * high] },
            y: size,
            marks: [
              { vertical: low, style: "dotted", label: "μ" },
              { vertical: high, style: "dotted", label: "L" },
              ...KINDS.map(([key, color, style, label]) => ({
                line: spectrum.map((x, i) => [x, Math.max(1e-30, Math.abs(along[key][i]))]),
                color,
                style,
                label,
              })),
            ],
          },
        ],
      };
    },
  });
}
