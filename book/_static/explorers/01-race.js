/* Chapter 01: the race of two features in the polynomial part of the activation, s' = S s^(alpha - 1). */
{
  const { number, range } = mvnbExplorer;
  const WAY = range(0, 0.9999, 160).map((t) => 1 - (1 - t) ** 2); // denser where the leader takes off
  const MARGINS = range(0.001, 1, 61, true);
  /** Factor by which the loser has grown when a winner escapes whose score is 1 + margin times the loser's. */
  const growth = (margin, power) => (-Math.expm1(-power * Math.log1p(margin))) ** (-1 / power);

  mvnbExplorer("01-race", {
    title: "The race of two features",
    controls: [
      { name: "lead", label: "head start of feature 1", min: 0.001, max: 1, value: 0.02, log: true, steps: 60,
        show: (v) => `${number(100 * v)} %` },
      { name: "alpha", label: "exponent α", min: 3, max: 12, step: 1, value: 8 },
      { name: "strength", label: "strength of feature 2, S₂/S₁", min: 0.5, max: 2, step: 0.05, value: 1 },
    ],
    compute({ lead, alpha, strength }) {
      const power = alpha - 2;
      const times = [(1 + lead) ** -power, 1 / strength]; // of escape, in units of feature 2's at equal strength
      const winner = times[0] <= times[1] ? 0 : 1;
      const margin = (times[1 - winner] / times[winner]) ** (1 / power) - 1;
      const path = (start, escape) => WAY.map((t) => start * (1 - (t * times[winner]) / escape) ** (-1 / power));
      return {
        way: WAY,
        margins: MARGINS,
        times,
        winner,
        margin,
        first: path(1 + lead, times[0]),
        second: path(1, times[1]),
        grown: growth(Math.max(margin, 1e-9), power),
        curve: MARGINS.map((m) => growth(m, power)),
      };
    },
    draw({ alpha }, { times, winner, margin, first, second, grown, curve }) {
      const names = ["feature 1", "feature 2"];
      const colors = ["sky", "yellow"];
      const line = (values) => WAY.map((t, i) => [t, values[i]]);
      const references = [3, 4, 12].filter((a) => a !== alpha);
      const spot = (a) => [a > 4 ? 0.002 : a > 3 ? 0.006 : 0.15].map((m) => [m, growth(m, a - 2)])[0];
      return {
        readout:
          `Feature ${winner + 1} wins the race, in ${number(times[winner] / times[1 - winner], 4)} of the time the other would need. ` +
          `By then the loser has grown by the factor ${number(grown)} (α = ${alpha}).`,
        panels: [
          {
            title: "The race until the winner escapes",
            x: { label: "time / escape of the winner", domain: [0, 1.02] },
            y: { label: "correlation / start of feature 2", domain: [0.8, 30], log: true },
            marks: [
              { line: line(first), color: colors[0], label: names[0] },
              { line: line(second), color: colors[1], style: "dashed", label: names[1] },
              { vertical: 1, style: "dotted" },
            ],
          },
          {
            title: "What the loser gets",
            x: { label: "winner's score over the loser's, minus 1", domain: [0.001, 1], log: true },
            y: { label: "growth of the loser", domain: [1, 30], log: true },
            marks: [
              ...references.map((a) => ({
                line: MARGINS.map((m) => [m, growth(m, a - 2)]),
                color: "grey",
                style: "thin",
                label: `α = ${a}`,
                at: spot(a),
              })),
              { line: MARGINS.map((m, i) => [m, curve[i]]), color: "blue", label: `α = ${alpha}`, at: spot(alpha) },
              { points: [[margin, grown]], color: colors[1 - winner] },
            ],
          },
        ],
      };
    },
  });
}
