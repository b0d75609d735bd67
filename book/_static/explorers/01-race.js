/* Chapter 01: the race of two features in the polynomial part of the activation, s' = s^(alpha - 1). */
{
  const { number, range } = mvnbExplorer;
  const WAY = range(0, 0.9999, 160).map((t) => 1 - (1 - t) ** 2); // denser where feature 1 takes off
  const LEADS = range(0.001, 1, 61, true);
  /** Factor by which feature 2 has grown when feature 1 escapes. */
  const growth = (lead, alpha) => (-Math.expm1((2 - alpha) * Math.log1p(lead))) ** (1 / (2 - alpha));

  mvnbExplorer("01-race", {
    title: "The race of two features",
    controls: [
      { name: "time", label: "time", min: 0, max: 1, step: 0.005, value: 1, play: 8, show: (t) => `${number(100 * t)} %` },
      { name: "lead", label: "head start of feature 1", min: 0.001, max: 1, value: 0.02, log: true, steps: 60,
        show: (v) => `${number(100 * v)} %` },
      { name: "alpha", label: "exponent α", min: 3, max: 12, step: 1, value: 8 },
    ],
    compute({ time, lead, alpha }) {
      const share = (1 + lead) ** (2 - alpha); // escape time of feature 1 over that of feature 2
      const at = (t) => [(1 + lead) * (1 - t) ** (1 / (2 - alpha)), (1 - t * share) ** (1 / (2 - alpha))];
      const reached = Math.min(time, WAY.at(-1)); // beyond, feature 1 has no value
      const [first, second] = [0, 1].map((k) => WAY.map((t) => at(t)[k]));
      const curve = LEADS.map((one) => growth(one, alpha));
      return { way: WAY, leads: LEADS, share, first, second, reached, now: at(reached), grown: growth(lead, alpha), curve };
    },
    draw({ time, lead, alpha }, { share, first, second, reached, now, grown, curve }) {
      const colors = ["sky", "yellow"];
      const line = (values) => WAY.map((t, i) => [t, values[i]]);
      const past = (values, k) => [...line(values).filter(([t]) => t < reached), [reached, now[k]]];
      const spot = (a) => [a > 4 ? 0.002 : a > 3 ? 0.006 : 0.15].map((one) => [one, growth(one, a)])[0];
      const factors = [now[0] / (1 + lead), now[1]].map((one) => (one > 9 ? "more than 9" : one.toFixed(2)));
      return {
        readout:
          `Feature 1 takes off after ${number(100 * share)} % of the time that feature 2 would need, when feature 2 has ` +
          `${number(grown)} times its start (α = ${alpha}). At ${number(100 * time)} % of the way they have ` +
          `${factors.join(" and ")} times their starts.`,
        panels: [
          {
            title: "Until feature 1 takes off",
            x: { label: "time / escape time of feature 1", domain: [0, 1.02] },
            y: { label: "response / start of feature 2", domain: [0.8, 30], log: true },
            marks: [
              { line: line(first), color: colors[0], style: "thin dotted", label: "feature 1" },
              { line: line(second), color: colors[1], style: "thin dotted", label: "feature 2" },
              { line: past(first, 0), color: colors[0] },
              { line: past(second, 1), color: colors[1], style: "dashed" },
              { vertical: 1, style: "dotted" },
              ...now.map((value, k) => ({ points: [[reached, value]], color: colors[k] })),
            ],
          },
          {
            title: "How far feature 2 has come by then",
            x: { label: "head start of feature 1", domain: [0.001, 1], log: true },
            y: { label: "growth of feature 2", domain: [1, 30], log: true },
            marks: [
              ...[3, 4, 12].filter((a) => a !== alpha).map((a) => ({
                line: LEADS.map((one) => [one, growth(one, a)]),
                color: "grey",
                style: "thin",
                label: `α = ${a}`,
                at: spot(a),
              })),
              { line: LEADS.map((one, i) => [one, curve[i]]), color: "blue", label: `α = ${alpha}`, at: spot(alpha) },
              { points: [[lead, grown]], color: colors[1] },
            ],
          },
        ],
      };
    },
  });
}
