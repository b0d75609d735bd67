/* Chapter 06: the scores of token a under gradient descent on all sequences of three tokens that hold a, with V = c P. */
{
  const { number } = mvnbExplorer;
  const [N, C, RATE, LAST, ALONE] = [3, 8, 0.25, 60, 5]; // tokens of a sequence, scale of V, step size; steps drawn
  const times = (n, of) => Array.from({ length: n }, (_, i) => of(i));
  const choose = (n, k) => times(k, (i) => (n - i) / (i + 1)).reduce((a, b) => a * b, 1);
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

  const softmax = (scores) => {
    const powers = scores.map((w) => Math.exp(w));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((x) => x / total);
  };
  /** Derivatives of the loss by the scores of the tokens present, the deciding token first. */
  const slopes = (scores, size) => {
    const p = softmax(scores);
    const sigma = softmax([...p.map((x) => C * x), ...times(size - N, () => 0)]);
    const pull = p.map((_, i) => C * (sigma[i] - (i === 0)));
    const mean = p.reduce((sum, x, i) => sum + x * pull[i], 0);
    return p.map((x, i) => x * (pull[i] - mean));
  };
  const right = (p) => p.slice(1).every((x) => p[0] > x + 1e-9);

  mvnbExplorer("06-column", {
    title: "The scores of one token",
    controls: [
      { name: "steps", label: "gradient steps", min: 0, max: LAST, step: 1, value: 6, play: 8 },
      { name: "list", label: "list of a", value: "bda",
        options: [["bda", "b, d, a"], ["dba", "d, b, a"], ["ba", "b, a"], ["a", "a"]] },
      { name: "present", label: "sequence shown", value: "bd",
        options: [["bd", "a, b, d"], ["bx", "a, b, x"], ["dx", "a, d, x"], ["xy", "a, x, y"]] },
      { name: "size", label: "tokens in the vocabulary, L", min: 6, max: 40, step: 1, value: 20 },
    ],
    compute({ steps, list, present, size }) {
      // Kinds of tokens: the entries of the list in order, and one for all others, whose scores stay equal.
      const other = list.length;
      const kind = (token) => (list.includes(token) ? list.indexOf(token) : other);
      const cases = times(2 ** (other - 1), (mask) => {
        const held = [...list].flatMap((_, i) => (i === other - 1 || (mask >> i) & 1 ? [i] : []));
        const rest = N - held.length;
        return { kinds: [...held, ...Array(rest).fill(other)], chance: choose(size - other, rest) / choose(size - 1, N - 1) };
      });
      const way = [Array(other + 1).fill(0)];
      while (way.length <= LAST) {
        const scores = [...way.at(-1)];
        for (const { kinds, chance } of cases) {
          const slope = slopes(kinds.map((k) => way.at(-1)[k]), size);
          kinds.forEach((k, i) => (scores[k] -= (RATE * chance * slope[i]) / (k === other ? size - other : 1)));
        }
        way.push(scores);
      }
      const now = way[steps];
      const tokens = ["a", ...present].sort((s, t) => kind(s) - kind(t)); // the deciding token first
      const alone = [tokens.map((token) => now[kind(token)])];
      for (let i = 0; i < ALONE; i++) {
        const slope = slopes(alone.at(-1), size);
        alone.push(alone.at(-1).map((w, k) => w - RATE * slope[k]));
      }
      const correct = cases.filter(({ kinds }) => right(softmax(kinds.map((k) => now[k]))));
      return { tokens, way, alone, attention: softmax(alone[0]), share: correct.reduce((sum, one) => sum + one.chance, 0) };
    },
    draw({ steps, list }, { tokens, way, alone, attention, share }) {
      const names = [...list, "others"];
      const look = (name) => (list.includes(name) ? { b: "green", d: "pink", a: "brown" }[name] : "grey");
      const line = (k, test) => way.map((scores, t) => [t, scores[k]]).filter(([t]) => test(t));
      const first = tokens.filter((_, i) => attention[i] > Math.max(...attention) - 1e-9);
      const result = first.length > 1 ? `equally to ${first.join(", ")}: a tie, which counts as wrong` :
        `most to ${first}, so the label is π(${first}): ${first[0] === tokens[0] ? "right" : "wrong"}`;
      const moves = tokens.map((_, i) => signed(alone[1][i] - alone[0][i])).join(", ");
      return {
        readout:
          `Here ${tokens[0]} decides. After ${steps} steps on all sequences, a attends ${result}. Of all sequences with a, ` +
          `${number(100 * share)} % are right. One step on this sequence alone would change the scores of ${tokens.join(", ")} by ${moves}.`,
        panels: [
          {
            title: `Most attention: ${first.join(", ")}; deciding: ${tokens[0]}`,
            x: { label: "tokens of the sequence", domain: [0.4, 3.6], ticks: [] },
            y: { label: "attention of a", domain: [0, 1.08] },
            marks: tokens.map((token, i) => ({
              stems: [[i + 1, attention[i]]],
              color: look(token),
              label: `${token} ${attention[i].toFixed(2)}`,
            })),
          },
          {
            title: "Scores of a over the steps",
            x: { label: "gradient steps", domain: [0, LAST] },
            y: { label: "score", domain: [-1.2, 3] },
            marks: [
              ...names.map((name, k) => ({ line: line(k, () => true), color: look(name), style: "thin dotted", label: name })),
              ...names.map((name, k) => ({ line: line(k, (t) => t <= steps), color: look(name) })),
              ...tokens.map((token, i) => ({ line: alone.map((w, t) => [steps + t, w[i]]), color: look(token), style: "dashed" })),
              ...names.map((name, k) => ({ points: [[steps, way[steps][k]]], color: look(name) })),
            ],
          },
        ],
      };
    },
  });
}
