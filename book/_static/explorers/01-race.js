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
      { name: "time", label: "time", min: 0, max: 1, step: 0.005, value: 1, play: 8, show: (t) => `${number(100 * t)} %` },
      { name: "lead", label: "head start of feature 1", min: 0.001, max: 1, value: 0.02, log: true, steps: 60,
        show: (v) => `${number(100 * v)} %` },
      { name: "alpha", label: "exponent α", min: 3, max: 12, step: 1, value: 8 },
      { name: "strength", label: "strength of feature 2, S₂/S₁", min: 0.5, max: 2, step: 0.05, value: 1 },
    ],
    compute({ time, lead, alpha, strength }) {
      const power = alpha - 2;
      const times = [(1 + lead) ** -power, 1 / strength]; // of escape, in units of feature 2's at equal strength
      const winner = times[0] <= times[1] ? 0 : 1;
      const margin = (times[1 - winner] / times[winner]) ** (1 / power) - 1;
      const at = (start, escape, t) => start * (1 - (t * times[winner]) / escape) ** (-1 / power);
      const path = (start, escape) => WAY.map((t) => at(start, escape, t));
      const reached = Math.min(time, WAY.at(-1)); // beyond, the winner has no value
      return {
        way: WAY,
        margins: MARGINS,
        times,
        winner,
        margin,
        first: path(1 + lead, times[0]),
        second: path(1, times[1]),
        reached,
        now: [at(1 + lead, times[0], reached), at(1, times[1], reached)],
        grown: growth(Math.max(margin, 1e-9), power),
        curve: MARGINS.map((m) => growth(m, power)),
      };
    },
    draw({ time, lead, alpha }, { times, winner, margin, first, second, reached, now, grown, curve }) {
      const names = ["feature 1", "feature 2"];
      const colors = ["sky", "yellow"];
      const line = (values) => WAY.map((t, i) => [t, values[i]]);
      const past = (values, k) => [...line(values).filter(([t]) => t < reached), [reached, now[k]]];
      const references = [3, 4, 12].filter((a) => a !== alpha);
      const spot = (a) => [a > 4 ? 0.002 : a > 3 ? 0.006 : 0.15].map((m) => [m, growth(m, a - 2)])[0];
      return {
        readout:
          `Feature ${winner + 1} wins the race, in ${number(times[winner] / times[1 - winner], 4)} of the time the other would need, and the ` +
          `loser (α = ${alpha}) in the end has ${number(grown)} times its start. At ${number(100 * time)} % of the way they have ` +
          `${[now[0] / (1 + lead), now[1]].map((times) => (times > 9 ? "more than 9" : times.toFixed(2))).join(" and ")} times theirs.`,
        panels: [
          {
            title: "The race until the winner escapes",
            x: { label: "time / escape of the winner", domain: [0, 1.02] },
            y: { label: "correlation / start of feature 2", domain: [0.8, 30], log: true },
            marks: [
              { line: line(first), color: colors[0], style: "thin dotted", label: names[0] },
              { line: line(second), color: colors[1], style: "thin dotted", label: names[1] },
              { line: past(first, 0), color: colors[0] },
              { line: past(second, 1), color: colors[1], style: "dashed" },
              { vertical: 1, style: "dotted" },
              ...now.map((value, k) => ({ points: [[reached, value]], color: colors[k] })),
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
