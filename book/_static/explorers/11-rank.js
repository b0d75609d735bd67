/* Chapter 11: the risk of a model of rank r on a context, in its parts, and what each direction is worth. */
{
  const { number, range } = mvnbExplorer;
  const D = 20;
  const N_TRAIN = 1e5;
  const RANKS = range(0, D, D + 1);
  const VARIANCES = range(1, 0.8, D);
  const TOTAL = VARIANCES.reduce((sum, v) => sum + v, 0);
  const TAU = VARIANCES.map((v) => (N_TRAIN * v) / ((N_TRAIN + 1) * v + TOTAL)); // what the best model passes on

  mvnbExplorer("11-rank", {
    title: "What a rank buys and what it costs",
    controls: [
      { name: "reach", label: "directions with signal, about", min: 1, max: 25, value: 5, log: true, steps: 60 },
      { name: "context", label: "examples M", min: 2, max: 512, value: 16, log: true, integer: true, steps: 64 },
      { name: "noise", label: "label noise σ", min: 0, max: 3, step: 0.1, value: 1 },
      { name: "flip", label: "labels flipped", min: 0, max: 0.6, step: 0.02, value: 0, show: (p) => `${Math.round(100 * p)} %` },
    ],
    compute({ reach, context, noise, flip }) {
      const power = VARIANCES.map((v, i) => Math.exp((-2 * i) / reach) * v); // the signal along each direction
      const whole = power.reduce((sum, p) => sum + p, 0);
      const a = 1 - 2 * flip;
      const inputs = TAU.map((tau, i) => (tau ** 2 * ((2 - a ** 2) * power[i] + whole)) / context);
      const labels = TAU.map((tau) => (tau ** 2 * noise ** 2) / context);
      const missed = TAU.map((tau, i) => power[i] * (1 - a * tau) ** 2);
      const upTo = (r, part) => part.slice(0, r).reduce((sum, p) => sum + p, 0);
      const parts = {
        missed: RANKS.map((r) => upTo(r, missed) + whole - upTo(r, power)),
        inputs: RANKS.map((r) => upTo(r, inputs)),
        labels: RANKS.map((r) => upTo(r, labels)),
      };
      const risk = RANKS.map((r) => parts.missed[r] + parts.inputs[r] + parts.labels[r]);
      return { ...parts, risk, gain: missed.map((m, i) => m + inputs[i] + labels[i] - power[i]) };
    },
    draw({ context, noise }, { missed, inputs, labels, risk, gain }) {
      const over = (values) => RANKS.map((r) => [r, values[r]]);
      const best = risk.indexOf(Math.min(...risk));
      const top = 1.1 * Math.max(risk[0], risk[best], missed[0]);
      const [low, high] = [Math.min(...gain, 0), Math.max(...gain, 0)];
      const room = 0.12 * (high - low);
      return {
        readout:
          `With ${context} examples and σ = ${number(noise)} the best rank is ${best}, with the risk ${number(risk[best])}: ` +
          `${number(missed[best], 2)} signal missed, ${number(inputs[best], 2)} noise of the inputs, ${number(labels[best], 2)} noise of ` +
          `the labels. Rank 0 has ${number(risk[0])}, rank 20 ${number(risk[D])}.`,
        panels: [
          {
            title: "Risk and its parts",
            x: { label: "rank", domain: [0, D] },
            y: { label: "squared error", domain: [0, top] },
            marks: [
              { line: over(missed), color: "blue", label: "signal missed" },
              { line: over(inputs), color: "green", style: "dashed", label: "input noise" },
              { line: over(labels), color: "orange", style: "dotted", label: "label noise" },
              { line: over(risk), label: "risk" },
              { points: [[best, risk[best]]], label: "best rank" },
            ],
          },
          {
            title: "What one more direction changes",
            x: { label: "direction", domain: [0, D + 0.5] },
            y: { label: "change of the risk", domain: [low - room, high + room] },
            marks: [
              { stems: gain.map((g, i) => [i + 1, g]).filter((p) => p[1] < 0), color: "blue", label: "helps" },
              { stems: gain.map((g, i) => [i + 1, g]).filter((p) => p[1] >= 0), color: "orange", label: "harms" },
              { horizontal: 0 },
            ],
          },
        ],
      };
    },
  });
}
